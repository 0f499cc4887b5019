"""The trainer's own seats: rank 0, and with several senders its other ranks."""

from rollcall_protocol.env import MEMBERSHIP_PORT
from rollcall_protocol.wire.ids import MemberId
from rollcall_protocol.wire.messages import Hello, Seat


class SenderSeats:
    """Who sends, in the order of ranks; `first` is always there."""

    def __init__(self, first: Seat, *, expected: int) -> None:
        self._expected = expected
        self._seats: dict[int, Seat] = {0: first}

    @property
    def complete(self) -> bool:
        """Whether all of them are there; no session is formed before."""
        return len(self._seats) == self._expected

    @property
    def seats(self) -> tuple[Seat, ...]:
        """The seats that are taken."""
        return tuple(seat for _, seat in sorted(self._seats.items()))

    @property
    def members(self) -> tuple[MemberId, ...]:
        """Who sits there."""
        return tuple(seat.member for seat in self.seats)

    @property
    def donors(self) -> str:
        """Where a newcomer finds all parts of a version that no rollout holds."""
        return "+".join(f"{seat.address}:{MEMBERSHIP_PORT}" for seat in self.seats)

    def at(self, rank: int) -> MemberId | None:
        """Who sits at `rank`."""
        return self._seats[rank].member if rank in self._seats else None

    def enter(self, rank: int, hello: Hello) -> str:
        """Seat one; otherwise why not."""
        if not 0 < rank < self._expected:
            return f"sender {rank} of {self._expected}"
        self._seats[rank] = Seat(hello.member, hello.address, hello.descriptor)
        return ""

    def leave(self, member: MemberId) -> int | None:
        """The rank that `member` leaves, if it had one beside rank 0."""
        for rank, seat in self._seats.items():
            if rank and seat.member == member:
                del self._seats[rank]
                return rank
        return None
