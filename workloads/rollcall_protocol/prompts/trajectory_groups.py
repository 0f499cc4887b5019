"""Gathers trajectories into groups, as the samples of one prompt, each trajectory once.

A group that is not whole expires, and a restart of the trainer loses it: its trajectories were
sampled by weights that would be too old by then. Those that were in a whole group stay known.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from rollcall_protocol.wire.messages import ALONE, Sample
from rollcall_protocol.wire.partial_responses import NOT_SAMPLED
from rollcall_protocol.wire.trajectories import FinishedTrajectory, TrajectoryPart

MOST_GROUPS = 4096  # that are not whole; the oldest goes first
MOST_TOKENS = 1 << 26  # of these, some 100 bytes each; likewise
MOST_KNOWN = 16_384  # trajectories, so that none counts twice


@dataclass(slots=True)
class _OpenGroup:
    since: float
    members: list[FinishedTrajectory] = field(default_factory=list)


class TrajectoryGroups:
    """Groups of `size`. A group that has begun expires after `seconds`."""

    def __init__(self, *, size: int, seconds: float, known: Iterable[str] = ()) -> None:
        self._size, self._seconds = size, seconds
        self._known: OrderedDict[str, None] = OrderedDict.fromkeys(known)
        self._open: OrderedDict[tuple[str, tuple[int, ...]], _OpenGroup] = OrderedDict()
        self._whole: OrderedDict[str, None] = OrderedDict(self._known)

    @property
    def waiting(self) -> int:
        """The number of trajectories in groups that are not whole."""
        return sum(len(group.members) for group in self._open.values())

    @property
    def counted(self) -> tuple[str, ...]:
        """The names of those that were in whole groups, for a checkpoint."""
        return tuple(self._whole)

    def knows(self, trajectory: str) -> bool:
        """Whether it was added before."""
        return trajectory in self._known

    def fits(self, trajectory: FinishedTrajectory) -> bool:
        """Whether its parts share their beginning, and that of those that are in its group."""
        group = self._open.get(_key(trajectory))
        first = (group.members[0] if group else trajectory).prompt[0]
        return all(part.prompt[0] == first for part in trajectory.parts)

    def add(
        self, trajectory: FinishedTrajectory, now: float
    ) -> tuple[FinishedTrajectory, ...] | None:
        """Add a new one that `fits`; its group if that is whole by it."""
        _remember(self._known, trajectory.trajectory)
        key = _key(trajectory)
        group = self._open.setdefault(key, _OpenGroup(now))
        group.members.append(trajectory)
        if len(group.members) < self._size:
            return None
        del self._open[key]
        for member in group.members:
            _remember(self._whole, member.trajectory)
        return tuple(group.members)

    def expire(self, now: float, *, oldest: int) -> int:
        """Drop groups that have waited too long, and the oldest of too many, and trajectories of a
        version below `oldest`, with which a whole group would be too old; how many trajectories.
        """
        before = self.waiting
        for key, group in list(self._open.items()):
            group.members = [one for one in group.members if one.oldest.number >= oldest]
            if not group.members or now - group.since >= self._seconds:
                del self._open[key]
        tokens = sum(_tokens(group) for group in self._open.values())
        while len(self._open) > MOST_GROUPS or tokens > MOST_TOKENS:
            tokens -= _tokens(self._open.popitem(last=False)[1])
        return before - self.waiting


def as_samples(
    group: Sequence[FinishedTrajectory],
) -> tuple[tuple[int, ...], tuple[Sample, ...]]:
    """The tokens that all prompts begin with, and each trajectory's parts as samples behind them.

    What is left of a prompt is given, as an environment's tokens are.
    """
    prompts = [part.prompt for one in group for part in one.parts]
    shared = min(prompts, key=len)
    for prompt in prompts:
        while prompt[: len(shared)] != shared:
            shared = shared[: _common(shared, prompt)]
    return shared, tuple(
        _behind(part, len(shared), trajectory=number if len(one.parts) > 1 else ALONE)
        for number, one in enumerate(group)
        for part in one.parts
    )


def rewards_of(samples: Sequence[Sample]) -> tuple[float, ...]:
    """One for each trajectory, however many samples it is."""
    firsts = dict[tuple[int, int], float]()
    for place, sample in enumerate(samples):
        own = place if sample.trajectory == ALONE else ALONE
        firsts.setdefault((sample.trajectory, own), sample.reward)
    return tuple(firsts.values())


def _tokens(group: _OpenGroup) -> int:
    return sum(one.tokens for one in group.members)


def _behind(part: TrajectoryPart, shared: int, *, trajectory: int) -> Sample:
    rest, sample = part.prompt[shared:], part.sample
    return Sample(
        (*rest, *sample.tokens),
        (*([0.0] * len(rest)), *sample.logprobs),
        (*([NOT_SAMPLED] * len(rest)), *sample.versions),
        sample.reward,
        trajectory=trajectory,
    )


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    pairs = zip(one, other, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def _key(trajectory: FinishedTrajectory) -> tuple[str, tuple[int, ...]]:
    return (trajectory.group, () if trajectory.group else trajectory.prompt)


def _remember(names: OrderedDict[str, None], name: str) -> None:
    names[name] = None
    while len(names) > MOST_KNOWN:
        names.popitem(last=False)
