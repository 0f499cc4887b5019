"""The turns of trajectories without a reward, as they came from the fronts. Pure: no I/O, no clock.

Any pod of the front goes on with any trajectory, and a pod that is lost takes none with it.
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

from rollcall_protocol.wire.trajectories import TrajectoryTurn, TurnVerdict

MOST_KEPT = 65_536  # trajectories
MOST_BYTES = 1 << 30  # of all their turns, some 30 a token
MOST_GONE = 65_536  # names that may not be used again


@dataclass(slots=True)
class _Kept:
    turns: list[bytes] = field(default_factory=list)
    tokens: int = 0  # of the last turn's prompt and response
    size: int = 0
    until: float = 0.0


class KeptTurns:
    """Within MOST_KEPT and MOST_BYTES. Those that were idle longest are forgotten first.

    `counted`: names of trajectories that have their reward already.
    """

    def __init__(self, counted: Iterable[str] = ()) -> None:
        self._kept: OrderedDict[str, _Kept] = OrderedDict()  # the longest idle first
        self._gone: OrderedDict[str, TurnVerdict] = OrderedDict()
        self._bytes = 0
        for name in counted:
            self.end(name)

    def __len__(self) -> int:
        return len(self._kept)

    def since(self, name: str, number: int) -> tuple[TurnVerdict, tuple[bytes, ...]]:
        """The turns of `name` from `number` on, KEPT; or why there are none: ENDED, LOST."""
        kept = self._kept.get(name, _Kept())
        verdict = self._missing(name, number)
        return verdict, tuple(kept.turns[number:]) if verdict is TurnVerdict.KEPT else ()

    def add(self, turn: TrajectoryTurn, written: bytes, now: float) -> TurnVerdict:
        """Keep a turn as it was `written`: KEPT, also if it is kept already; BEHIND if another is.

        ENDED, LOST; BAD_TURN if it knows more tokens than there are.
        """
        verdict = self._missing(turn.trajectory, turn.number)
        if verdict is not TurnVerdict.KEPT:
            return verdict
        kept = self._kept.get(turn.trajectory) or _Kept()
        if turn.number < len(kept.turns):
            same = kept.turns[turn.number] == written
            return TurnVerdict.KEPT if same else TurnVerdict.BEHIND
        if not 0 <= turn.known <= kept.tokens:
            return TurnVerdict.BAD_TURN
        kept.turns.append(written)
        kept.tokens, kept.until = turn.tokens, now + turn.seconds
        kept.size += len(written)
        self._bytes += len(written)
        self._kept[turn.trajectory] = kept
        self._kept.move_to_end(turn.trajectory)
        return TurnVerdict.KEPT

    def end(self, name: str, why: TurnVerdict = TurnVerdict.ENDED) -> None:
        """Its turns are dropped, and its name is not used again."""
        gone = self._kept.pop(name, None)
        self._bytes -= gone.size if gone is not None else 0
        self._gone[name] = why
        while len(self._gone) > MOST_GONE:
            self._gone.popitem(last=False)

    def forget(self, now: float) -> int:
        """Drop those whose time is over, and the longest idle of too many; how many."""
        before = len(self._kept)
        while self._kept:
            name, oldest = next(iter(self._kept.items()))
            many = len(self._kept) > MOST_KEPT or self._bytes > MOST_BYTES
            if not many and now < oldest.until:
                break
            self.end(name, TurnVerdict.LOST)
        return before - len(self._kept)

    def _missing(self, name: str, number: int) -> TurnVerdict:
        """Why the turns before `number` are not all here; KEPT if they are."""
        gone = self._gone.get(name)
        if gone is not None:
            return gone
        kept = self._kept.get(name)
        if number <= (len(kept.turns) if kept else 0):
            return TurnVerdict.KEPT
        self.end(name, TurnVerdict.LOST)  # they were kept by an earlier trainer
        return TurnVerdict.LOST
