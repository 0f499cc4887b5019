"""Where the members of a session meet before they can talk to each other: a room at the sender.

A room belongs to one session of one group and exists while somebody is in it, so nothing of
another session can match and nothing is left behind. Who has said that it stays is missed when it
goes: the others' waits end at once. Who enters shows the secret of the sender's descriptor, which
only members of the roster get. `rendezvous_server` is the sender's side.

Not torch's TCPStore: it asks DNS for the name of every peer that connects, which stalls joins for
seconds where nobody answers; its waits cannot be interrupted; and it serves whoever connects.
"""

import json
import socket
import struct
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rollcall_protocol.wire.messages import Seat
from rollcall_runtime.sync.engine import decode_descriptor
from rollcall_runtime.sync.errors import JoinFailedError, TransferFailedError

LENGTH = struct.Struct(">I")  # of the frame that follows
BROKEN = "broken"  # in an answer: the rank that was to stay and is gone
_LATE_SECONDS = 0.2  # how much later than asked an answer may come
_REST_SECONDS = 0.01  # how often a blocked client looks whether it was aborted


@dataclass(frozen=True, slots=True)
class Address:
    """Where a sender's rendezvous listens; its descriptor."""

    host: str
    port: int
    secret: str = field(repr=False)

    @classmethod
    def of(cls, seat: Seat) -> "Address":
        """Read the descriptor of a sender's seat; raises JoinFailedError."""
        try:
            host, port, secret = decode_descriptor(seat)["rendezvous"]
            return cls(host=str(host), port=int(port), secret=str(secret))
        except (ValueError, KeyError, TypeError) as error:
            reason = f"not a sender's descriptor: {error!r}"
            raise JoinFailedError(reason, peer=seat.member) from error

    def descriptor(self) -> dict[str, Any]:
        """What `of` reads, as a part of the sender's descriptor."""
        return {"rendezvous": [self.host, self.port, self.secret]}


class Rendezvous:
    """One member in its session's room. Used by one thread, which `rest` lets out early.

    All of it has to be done by `deadline` (monotonic), which may be moved.

    `rest(seconds)` waits a little, and raises when the session was given up. All calls raise
    JoinFailedError, naming the sender when it cannot be reached.
    """

    def __init__(
        self, *, room: str, seats: Sequence[Seat], deadline: float, rest: Callable[[float], None]
    ) -> None:
        self._room = room
        self._seats = tuple(seats)
        self.deadline = deadline
        self._rest = rest
        self._received = b""
        address = Address.of(seats[0])
        self._socket = self._connect(address)
        try:
            self._send({"secret": address.secret, "room": room})
        except JoinFailedError:
            self.close()
            raise

    def meet(self, rank: int) -> None:
        """Take a seat and wait until all are taken; an empty one is named at the deadline."""
        keys = [f"seat/{seat}" for seat in range(len(self._seats))]
        taken = self._exchange(_told({keys[rank]: b""}) | _asked(keys, self.deadline))
        empty = [
            seat.member for seat, key in zip(self._seats, keys, strict=True) if key not in taken
        ]
        if empty:
            reason = f"{self._room}: {len(empty)} of {len(keys)} seats stayed empty"
            raise JoinFailedError(reason, peer=empty[0])

    def put(self, key: str, value: bytes) -> None:
        """Tell the others."""
        self._exchange(_told({key: value}))

    def get(self, key: str) -> bytes:
        """Wait for what another member tells; until the deadline."""
        return self.get_all([key])[0]

    def get_all(
        self, keys: Sequence[str], *, telling: Mapping[str, bytes] | None = None
    ) -> list[bytes]:
        """As `get`, for several in one question, which says first what there is to tell."""
        answer = self._exchange(_told(telling or {}) | _asked(keys, self.deadline))
        missing = [key for key in keys if key not in answer]
        if missing:
            raise JoinFailedError(f"{self._room}: nobody told {missing[0]!r}")
        return [b64decode(answer[key]) for key in keys]

    def stay(self, rank: int) -> None:
        """Be missed from now on: when this connection ends, the others' waits do."""
        self._exchange({"stay": rank})

    def wait(self, keys: Sequence[str], *, deadline: float) -> tuple[bytes | None, ...]:
        """The values of `keys`, None for what nobody told until `deadline` (monotonic).

        Raises TransferFailedError, which names who was to stay and is gone.
        """
        answer = self._exchange(_asked(keys, deadline))
        gone = answer.get(BROKEN)
        if gone is not None:
            rank = int(gone)
            peer = self._seats[rank].member if rank < len(self._seats) else None
            raise TransferFailedError(f"{self._room}: rank {rank} has left", peer=peer)
        return tuple(b64decode(answer[key]) if key in answer else None for key in keys)

    def close(self) -> None:
        """Leave the room."""
        self._socket.close()

    def _connect(self, address: Address) -> socket.socket:
        while True:
            self._rest(0)
            left = max(self.deadline - time.monotonic(), 0.001)
            try:
                return socket.create_connection((address.host, address.port), timeout=left)
            except OSError as error:
                if time.monotonic() + _REST_SECONDS >= self.deadline:
                    raise self._unreachable(error) from error
                self._rest(_REST_SECONDS)

    def _exchange(self, request: dict[str, Any]) -> dict[str, str]:
        self._send(request)
        (length,) = LENGTH.unpack(self._receive(LENGTH.size))
        answer: dict[str, str] = json.loads(self._receive(length))
        return answer

    def _send(self, request: dict[str, Any]) -> None:
        self._socket.settimeout(max(self.deadline - time.monotonic(), _LATE_SECONDS))
        try:
            self._socket.sendall(frame(request))
        except OSError as error:
            raise self._unreachable(error) from error

    def _receive(self, size: int) -> bytes:
        self._socket.settimeout(_REST_SECONDS)
        while len(self._received) < size:
            self._rest(0)
            try:
                part = self._socket.recv(1 << 16)
            except TimeoutError as error:
                if time.monotonic() > self.deadline + _LATE_SECONDS:
                    raise self._unreachable(error) from error
                continue
            except OSError as error:
                raise self._unreachable(error) from error
            if not part:
                raise self._unreachable(ConnectionError("it closed the connection"))
            self._received += part
        head, self._received = self._received[:size], self._received[size:]
        return head

    def _unreachable(self, error: Exception) -> JoinFailedError:
        reason = f"{self._room}: the sender's rendezvous failed: {error or type(error).__name__}"
        return JoinFailedError(reason, peer=self._seats[0].member)


def _told(values: Mapping[str, bytes]) -> dict[str, Any]:
    return {"put": {key: b64encode(value).decode() for key, value in values.items()}}


def _asked(keys: Sequence[str], deadline: float) -> dict[str, Any]:
    return {"get": list(keys), "seconds": max(deadline - time.monotonic(), 0.0)}


def frame(body: dict[str, Any]) -> bytes:
    """A message as it travels."""
    text = json.dumps(body).encode()
    return LENGTH.pack(len(text)) + text
