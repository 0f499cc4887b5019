"""Where the members of a session meet before they can talk to each other: a server at the sender.

A room belongs to one session of one group and exists while somebody is in it, so nothing of
another session can match and nothing is left behind. Who has said that it stays is missed when it
goes: the others' waits end at once. Who enters shows the secret of the sender's
descriptor, which only members of the roster get.

Not torch's TCPStore: it asks DNS for the name of every peer that connects, which stalls joins for
seconds where nobody answers; its waits cannot be interrupted; and it serves whoever connects.
"""

import contextlib
import hmac
import json
import secrets
import select
import socket
import struct
import threading
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rollcall_protocol.messages import Seat
from rollcall_runtime.sync.engine import descriptor_of
from rollcall_runtime.sync.errors import JoinFailedError, TransferFailedError

_LENGTH = struct.Struct(">I")
_MAX_FRAME = 16 << 20
_IDLE_SECONDS = 60.0  # a visitor that says nothing for so long is sent away
_LATE_SECONDS = 0.2  # how much later than asked an answer may come
_REST_SECONDS = 0.01  # how often a blocked client looks whether it was aborted
_LOOK_SECONDS = 0.02  # how often a waiting visitor's connection is looked at
_BROKEN = "broken"  # in an answer: the rank that was to stay and is gone


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
            host, port, secret = descriptor_of(seat)["rendezvous"]
            return cls(host=str(host), port=int(port), secret=str(secret))
        except (ValueError, KeyError, TypeError) as error:
            reason = f"not a sender's descriptor: {error!r}"
            raise JoinFailedError(reason, peer=seat.member) from error

    def descriptor(self) -> dict[str, Any]:
        """What `of` reads, as a part of the sender's descriptor."""
        return {"rendezvous": [self.host, self.port, self.secret]}


class _Room:
    def __init__(self) -> None:
        self.visitors = 0
        self.values: dict[str, str] = {}
        self.gone: int | None = None


class RendezvousServer:
    """Listens on `address` alone, on a port that the kernel picks.

    Each visitor has a thread, for as long as its join takes.
    """

    def __init__(self, address: str) -> None:
        self._listener = _listen(address)
        port = self._listener.getsockname()[1]
        self.address = Address(host=address, port=port, secret=secrets.token_hex(16))
        self._changed = threading.Condition()  # guards all that follows
        self._rooms: dict[str, _Room] = {}
        self._visitors: set[socket.socket] = set()
        self._closed = False
        self._thread = threading.Thread(target=self._accept, name="rendezvous", daemon=True)
        self._thread.start()

    @property
    def rooms(self) -> int:
        """Sessions in which somebody is."""
        with self._changed:
            return len(self._rooms)

    def close(self) -> None:
        """Send all visitors away; waits at most a second."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            for visitor in (self._listener, *self._visitors):
                with contextlib.suppress(OSError):  # it has gone already
                    visitor.shutdown(socket.SHUT_RDWR)
        self._thread.join(1.0)

    def _accept(self) -> None:
        with self._listener:
            while not self._closed:
                try:
                    visitor, _ = self._listener.accept()
                except OSError:  # closed, or out of descriptors for a while
                    time.sleep(_REST_SECONDS)
                    continue
                threading.Thread(target=self._visit, args=(visitor,), daemon=True).start()

    def _visit(self, visitor: socket.socket) -> None:
        with visitor:
            visitor.settimeout(_IDLE_SECONDS)
            with self._changed:
                self._visitors.add(visitor)
            try:
                hello = _read(visitor)
                if not hmac.compare_digest(str(hello["secret"]), self.address.secret):
                    return
                self._host(str(hello["room"]), visitor)
            except (OSError, EOFError, ValueError, KeyError, TypeError):
                return  # it left, or is no member; either way its connection ends
            finally:
                with self._changed:
                    self._visitors.discard(visitor)

    def _host(self, name: str, visitor: socket.socket) -> None:
        with self._changed:
            room = self._rooms.setdefault(name, _Room())
            room.visitors += 1
        stays: int | None = None
        try:
            while not self._closed:
                request = _read(visitor)
                answer: dict[str, str] = {}
                if "put" in request:
                    answer = self._put(room, request["put"], request["value"])
                elif "stay" in request:
                    stays = int(request["stay"])
                    visitor.settimeout(None)
                else:
                    answer = self._get(room, request["get"], request["seconds"], visitor)
                visitor.sendall(_frame(answer))
        finally:
            with self._changed:
                if stays is not None and room.gone is None:
                    room.gone = stays
                    self._changed.notify_all()
                room.visitors -= 1
                if room.visitors == 0:
                    del self._rooms[name]

    def _put(self, room: _Room, key: str, value: str) -> dict[str, str]:
        with self._changed:
            room.values[key] = value
            self._changed.notify_all()
        return {}

    def _get(
        self, room: _Room, keys: list[str], seconds: float, visitor: socket.socket
    ) -> dict[str, str]:
        """Wait for all keys; what is missing after `seconds` is missing in the answer."""
        deadline = time.monotonic() + seconds

        def settled() -> bool:
            missing = any(key not in room.values for key in keys)
            return self._closed or not missing or room.gone is not None

        with self._changed:
            while not self._changed.wait_for(settled, min(seconds, _LOOK_SECONDS)):
                if time.monotonic() >= deadline:
                    break
                if _hung_up(visitor):
                    raise EOFError
            answer = {key: room.values[key] for key in keys if key in room.values}
            if len(answer) < len(keys) and room.gone is not None:
                answer[_BROKEN] = str(room.gone)
            return answer


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
        self.put(keys[rank], b"")
        taken = self._ask(keys)
        empty = [
            seat.member for seat, key in zip(self._seats, keys, strict=True) if key not in taken
        ]
        if empty:
            reason = f"{self._room}: {len(empty)} of {len(keys)} seats stayed empty"
            raise JoinFailedError(reason, peer=empty[0])

    def put(self, key: str, value: bytes) -> None:
        """Tell the others."""
        self._exchange({"put": key, "value": b64encode(value).decode()})

    def get(self, key: str) -> bytes:
        """Wait for what another member tells; until the deadline."""
        answer = self._ask([key])
        if key not in answer:
            raise JoinFailedError(f"{self._room}: nobody told {key!r}")
        return b64decode(answer[key])

    def stay(self, rank: int) -> None:
        """Be missed from now on: when this connection ends, the others' waits do."""
        self._exchange({"stay": rank})

    def wait(self, keys: Sequence[str], *, deadline: float) -> tuple[bytes | None, ...]:
        """The values of `keys`, None for what nobody told until `deadline` (monotonic).

        Raises TransferFailedError, which names who was to stay and is gone.
        """
        left = max(deadline - time.monotonic(), 0.0)
        answer = self._exchange({"get": list(keys), "seconds": left})
        gone = answer.get(_BROKEN)
        if gone is not None:
            rank = int(gone)
            peer = self._seats[rank].member if rank < len(self._seats) else None
            raise TransferFailedError(f"{self._room}: rank {rank} has left", peer=peer)
        return tuple(b64decode(answer[key]) if key in answer else None for key in keys)

    def close(self) -> None:
        """Leave the room."""
        self._socket.close()

    def _ask(self, keys: list[str]) -> dict[str, str]:
        left = max(self.deadline - time.monotonic(), 0.0)
        return self._exchange({"get": keys, "seconds": left})

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
        (length,) = _LENGTH.unpack(self._receive(_LENGTH.size))
        answer: dict[str, str] = json.loads(self._receive(length))
        return answer

    def _send(self, request: dict[str, Any]) -> None:
        self._socket.settimeout(max(self.deadline - time.monotonic(), _LATE_SECONDS))
        try:
            self._socket.sendall(_frame(request))
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


def _frame(body: dict[str, Any]) -> bytes:
    text = json.dumps(body).encode()
    return _LENGTH.pack(len(text)) + text


def _read(connection: socket.socket) -> dict[str, Any]:
    (length,) = _LENGTH.unpack(_read_exactly(connection, _LENGTH.size))
    if length > _MAX_FRAME:
        raise ValueError(f"a frame of {length} bytes")
    body = json.loads(_read_exactly(connection, length))
    if not isinstance(body, dict):
        raise ValueError("not an object")  # noqa: TRY004 - a bad message, not a bug
    return body


def _read_exactly(connection: socket.socket, size: int) -> bytes:
    parts = b""
    while len(parts) < size:
        part = connection.recv(min(size - len(parts), 1 << 16))
        if not part:
            raise EOFError
        parts += part
    return parts


def _hung_up(connection: socket.socket) -> bool:
    readable = select.poll()
    readable.register(connection, select.POLLIN)
    return bool(readable.poll(0)) and not connection.recv(1, socket.MSG_PEEK)


def _listen(address: str) -> socket.socket:
    family = socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)[0][0]
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.bind((address, 0))
        listener.listen(1024)
    except OSError:
        listener.close()
        raise
    return listener
