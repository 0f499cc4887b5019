"""The trainer's own seats: rank 0, and with several senders its other ranks."""

from rollcall_protocol.pod_contract import PARTS_PORT
from rollcall_protocol.wire.addresses import host_port
from rollcall_protocol.wire.ids import MemberId
from rollcall_protocol.wire.messages import Hello, Seat


class SenderSeats:
    """The trainer ranks that send, in the order of ranks; rank 0 (`first`) is always present."""

    def __init__(self, first: Seat, *, expected: int) -> None:
        self._expected = expected
        self._seats: dict[int, Seat] = {0: first}
        self._ports = {0: PARTS_PORT}

    @property
    def complete(self) -> bool:
        """Whether all senders are registered; no session is formed before."""
        return len(self._seats) == self._expected

    @property
    def seats(self) -> tuple[Seat, ...]:
        """Seats of the registered senders."""
        return tuple(seat for _, seat in sorted(self._seats.items()))

    @property
    def members(self) -> tuple[MemberId, ...]:
        """Members of these seats."""
        return tuple(seat.member for seat in self.seats)

    @property
    def donors(self) -> str:
        """Addresses that together hold all parts of a version: the last donor of a newcomer."""
        return "+".join(
            host_port(seat.address, self._ports[rank]) for rank, seat in sorted(self._seats.items())
        )

    def at(self, rank: int) -> MemberId | None:
        """The member at `rank`."""
        return self._seats[rank].member if rank in self._seats else None

    def enter(self, rank: int, hello: Hello) -> str:
        """Give `rank` to a sender; returns the reason if that is refused, else an empty string."""
        if not 0 < rank < self._expected:
            return f"sender {rank} of {self._expected}"
        self._seats[rank] = Seat(hello.member, hello.address, hello.descriptor)
        self._ports[rank] = hello.weights_port
        return ""

    def leave(self, member: MemberId) -> int | None:
        """Free the rank of `member` and return it; None for rank 0 and for a member without one."""
        for rank, seat in self._seats.items():
            if rank and seat.member == member:
                del self._seats[rank]
                return rank
        return None
