"""Which trajectories count, and as how old: a room and versions that a test chooses."""

from dataclasses import replace
from typing import Any

import pytest

from rollcall_protocol.prompts.sample_check import SampleBounds
from rollcall_protocol.prompts.trajectory_groups import TrajectoryGroups
from rollcall_protocol.wire.ids import Lineage, Version
from rollcall_protocol.wire.messages import Sample
from rollcall_protocol.wire.trajectories import (
    MOST_PARTS,
    FinishedTrajectory,
    TrajectoryPart,
    TrajectoryVerdict,
    TurnVerdict,
)
from rollcall_runtime.coordinator.trajectory_intake import TrajectoryIntake

LINEAGE = Lineage(1, 1)
NEWEST, OLDEST = 5, 2
GOOD = Sample((7,), (-0.5,), (NEWEST,), 1.0)


def trajectory(name: str, *, number: int = NEWEST, job: str = "uid") -> FinishedTrajectory:
    sample = Sample((7,), (-0.5,), (number,), 1.0)
    parts = (TrajectoryPart((1, 2), sample),)
    return FinishedTrajectory(job, name, "", parts, Version(LINEAGE, number))


def split(*samples: Sample) -> FinishedTrajectory:
    parts = tuple(TrajectoryPart((1, 2), sample) for sample in samples)
    return replace(trajectory("a"), parts=parts)


class Intake:
    """Groups of two; `taken` are the versions of the whole ones."""

    def __init__(self, **changes: Any) -> None:
        self.taken: list[Version] = []
        self.refused: list[str] = []
        values: dict[str, Any] = {
            "job_uid": "uid",
            "wanted": True,
            "bounds": SampleBounds(64, 16),
            "groups": TrajectoryGroups(size=2, seconds=60.0),
            "newest": lambda: Version(LINEAGE, NEWEST),
            "oldest": lambda: OLDEST,
            "room": lambda: True,
            "take": lambda _tokens, _samples, oldest: self.taken.append(oldest),
            "refused": self.refused.append,
        }
        self._intake = TrajectoryIntake(**values | changes)
        self.turns = self._intake.turns

    def count(self, trajectory: FinishedTrajectory) -> TrajectoryVerdict:
        return self._intake.count(trajectory)


def test_a_group_is_as_old_as_its_oldest_trajectory() -> None:
    intake = Intake()
    for name, number in (("a", 4), ("b", 3)):
        assert intake.count(trajectory(name, number=number)) is TrajectoryVerdict.COUNTED
    assert intake.taken == [Version(LINEAGE, 3)]


@pytest.mark.parametrize(
    ("changes", "sent", "verdict"),
    [
        ({}, trajectory("a", number=OLDEST), TrajectoryVerdict.COUNTED),
        ({}, trajectory("a", number=OLDEST - 1), TrajectoryVerdict.STALE),
        ({}, trajectory("a", number=NEWEST + 1), TrajectoryVerdict.BAD_SAMPLE),
        ({}, split(*[GOOD] * MOST_PARTS), TrajectoryVerdict.COUNTED),
        ({}, split(*[GOOD] * (MOST_PARTS + 1)), TrajectoryVerdict.BAD_SAMPLE),
        ({}, split(), TrajectoryVerdict.BAD_SAMPLE),
        ({}, split(GOOD, replace(GOOD, reward=0.0)), TrajectoryVerdict.BAD_SAMPLE),
        ({}, split(GOOD, replace(GOOD, tokens=(64,))), TrajectoryVerdict.BAD_SAMPLE),
        ({}, split(GOOD, replace(GOOD, versions=(OLDEST,))), TrajectoryVerdict.BAD_SAMPLE),
        ({}, trajectory("a", job="another"), TrajectoryVerdict.WRONG_JOB),
        (
            {},
            replace(trajectory("a"), oldest=Version(Lineage(1, 0), NEWEST)),
            TrajectoryVerdict.ABANDONED_LINEAGE,
        ),
        ({"wanted": False}, trajectory("a"), TrajectoryVerdict.NOT_WANTED),
        ({"newest": lambda: None}, trajectory("a"), TrajectoryVerdict.FULL),
        ({"room": lambda: False}, trajectory("a"), TrajectoryVerdict.FULL),
    ],
)
def test_what_counts_and_what_does_not(
    changes: dict[str, Any], sent: FinishedTrajectory, verdict: TrajectoryVerdict
) -> None:
    intake = Intake(**changes)
    assert intake.count(sent) is verdict
    counted = verdict is TrajectoryVerdict.COUNTED
    assert intake.refused == ([] if counted else [f"{verdict.value}_trajectory"])


def test_one_that_counted_is_a_duplicate_though_there_is_no_room() -> None:
    rooms = [True, False]
    intake = Intake(room=lambda: rooms.pop(0))
    assert intake.count(trajectory("a")) is TrajectoryVerdict.COUNTED
    assert intake.count(trajectory("a")) is TrajectoryVerdict.DUPLICATE


@pytest.mark.parametrize(
    ("changes", "sent", "left"),
    [
        ({}, trajectory("a"), TurnVerdict.ENDED),
        ({}, trajectory("a", number=OLDEST - 1), TurnVerdict.ENDED),
        ({}, trajectory("a", job="another"), TurnVerdict.KEPT),
        ({"room": lambda: False}, trajectory("a"), TurnVerdict.KEPT),
    ],
)
def test_what_is_decided_about_takes_no_more_turns(
    changes: dict[str, Any], sent: FinishedTrajectory, left: TurnVerdict
) -> None:
    intake = Intake(**changes)
    intake.count(sent)
    assert intake.turns.kept.since("a", 0)[0] is left


def test_what_counted_before_a_restart_takes_no_turns() -> None:
    intake = Intake(groups=TrajectoryGroups(size=2, seconds=60.0, known=("a",)))
    assert intake.turns.kept.since("a", 0)[0] is TurnVerdict.ENDED
