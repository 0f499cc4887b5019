"""How the members of a session find each other: a key-value table at the sender, one per session.

A table belongs to one session of one group and exists while a member is connected to it, so the
values of another session cannot match and nothing is left behind. A member may ask that its
disconnection be reported: then the waits of the others end at once when it dies. Connecting needs
the secret of the sender's descriptor, which only members of the roster receive.
`rendezvous_server` is the sender's side.

Not torch's TCPStore: it looks up the DNS name of every peer that connects, which delays joins by
seconds where no name server answers; its waits cannot be interrupted; and it serves every client.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rollcall_protocol.wire.messages import Seat
from rollcall_runtime.sync.engine import decode_descriptor
from rollcall_runtime.sync.errors import JoinFailedError, TransferFailedError
from rollcall_runtime.sync.rendezvous_connection import (
    CONFIRMED,
    DISCONNECTED,
    RendezvousAddress,
    RendezvousConnection,
    decode_value,
    get_request,
    put_request,
)


def address_of(seat: Seat) -> RendezvousAddress:
    """Read the descriptor of a sender's seat; raises JoinFailedError."""
    try:
        host, port, secret = decode_descriptor(seat)["rendezvous"]
        return RendezvousAddress(host=str(host), port=int(port), secret=str(secret))
    except (ValueError, KeyError, TypeError) as error:
        reason = f"the descriptor has no rendezvous address of a sender: {error!r}"
        raise JoinFailedError(reason, peer=seat.member) from error


def address_descriptor(address: RendezvousAddress) -> dict[str, Any]:
    """What `address_of` reads, as a part of the sender's descriptor."""
    return {"rendezvous": [address.host, address.port, address.secret]}


class SessionRendezvous:
    """One member's connection to its session's table. Used by one thread.

    All waits end at `deadline` (monotonic), which may be moved. `sleep(seconds)` is called while
    waiting and raises when the session was aborted. All methods raise JoinFailedError, which names
    the sender when the sender cannot be reached.
    """

    def __init__(
        self,
        *,
        session: str,
        seats: Sequence[Seat],
        deadline: float,
        sleep: Callable[[float], None],
    ) -> None:
        self._session = session
        self._seats = tuple(seats)
        try:
            self._connection = RendezvousConnection(
                address_of(seats[0]), session=session, deadline=deadline, sleep=sleep
            )
        except OSError as error:
            raise self._unreachable(error) from error

    @property
    def deadline(self) -> float:
        """When all waits end (monotonic)."""
        return self._connection.deadline

    @deadline.setter
    def deadline(self, deadline: float) -> None:
        self._connection.deadline = deadline

    def wait_for_all_seats(self, rank: int) -> None:
        """Take seat `rank` and wait until all are taken; names an empty one at the deadline."""
        keys = [f"seat/{seat}" for seat in range(len(self._seats))]
        taken = self._exchange(put_request({keys[rank]: b""}) | get_request(keys, self.deadline))
        empty = [
            seat.member for seat, key in zip(self._seats, keys, strict=True) if key not in taken
        ]
        if empty:
            reason = f"{self._session}: {len(empty)} of {len(keys)} seats stayed empty"
            raise JoinFailedError(reason, peer=empty[0])

    def wait_for_sender(self) -> None:
        """Wait until the sender's own join has ended well."""
        if CONFIRMED not in self._exchange(get_request([CONFIRMED], self.deadline)):
            reason = f"{self._session}: the sender's own join did not end in time"
            raise JoinFailedError(reason, peer=self._seats[0].member)

    def put(self, key: str, value: bytes) -> None:
        """Store a value for the other members."""
        self._exchange(put_request({key: value}))

    def get(self, key: str) -> bytes:
        """Wait until a member has stored `key`; JoinFailedError at the deadline."""
        return self.get_all([key])[0]

    def get_all(
        self, keys: Sequence[str], *, storing: Mapping[str, bytes] | None = None
    ) -> list[bytes]:
        """As `get`, for several keys in one round trip, after storing `storing`."""
        began = time.monotonic()
        answer = self._exchange(put_request(storing or {}) | get_request(keys, self.deadline))
        missing = [key for key in keys if key not in answer]
        if missing:
            raise JoinFailedError(
                f"{self._session}: timed out after {time.monotonic() - began:.3g} s waiting for "
                f"{missing[0]!r}, which no member has stored"
            )
        return [decode_value(answer[key]) for key in keys]

    def decide(
        self, topic: str, *, rank: int, offer: str, decide: Callable[[list[str]], str]
    ) -> str:
        """Agree on `topic`: every rank stores an offer, rank 0 decides from all, in rank order.

        Returns the decision at every rank.
        """
        decision, own = f"{topic}/decision", {f"{topic}/{rank}": offer.encode()}
        if rank != 0:
            return self.get_all([decision], storing=own)[0].decode()
        offers = self.get_all([f"{topic}/{rank}" for rank in range(len(self._seats))], storing=own)
        decided = decide([text.decode() for text in offers])
        self.put(decision, decided.encode())
        return decided

    def report_disconnect_of(self, rank: int) -> None:
        """From now on, when this connection ends, the waits of the others fail and name `rank`."""
        self._exchange({"report_disconnect_of": rank})

    def wait(self, keys: Sequence[str], *, deadline: float) -> tuple[bytes | None, ...]:
        """The values of `keys`; None for those that are not stored at `deadline` (monotonic).

        Raises TransferFailedError, which names the member whose disconnection was reported.
        """
        answer = self._exchange(get_request(keys, deadline))
        disconnected = answer.get(DISCONNECTED)
        if disconnected is not None:
            rank = int(disconnected)
            peer = self._seats[rank].member if rank < len(self._seats) else None
            raise TransferFailedError(f"{self._session}: rank {rank} disconnected", peer=peer)
        return tuple(decode_value(answer[key]) if key in answer else None for key in keys)

    def close(self) -> None:
        """Close the connection to the sender's rendezvous."""
        self._connection.close()

    def _exchange(self, request: dict[str, Any]) -> dict[str, str]:
        try:
            return self._connection.exchange(request)
        except OSError as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: Exception) -> JoinFailedError:
        reason = f"{self._session}: the sender's rendezvous failed: {error or type(error).__name__}"
        return JoinFailedError(reason, peer=self._seats[0].member)
