"""A kill counts only if it hits a transfer."""

from itertools import islice, pairwise

import pytest

from hack.bench.sync_engines import recovery
from hack.bench.sync_engines.recovery import KillTrials, RecoveryTimings, TransferEndedError
from hack.bench.sync_engines.throughput import BenchCase


class Fake(KillTrials):
    """Every other transfer ends before its victim."""

    def __init__(self) -> None:
        self.plays = 0

    def rest(self) -> None:
        pass

    def play(self, *, after: float, naive: bool = False) -> RecoveryTimings:
        self.plays += 1
        if self.plays % 2:
            raise TransferEndedError
        return RecoveryTimings(detect=0.1, rebuild=0.2, resend=after, total=0.3 + after)


def test_kills_that_came_too_late_are_played_again() -> None:
    scene = Fake()
    assert len(recovery.kills(scene, count=3)) == 3
    assert scene.plays == 6


def test_victims_die_all_over_the_transfer() -> None:
    moments = sorted(islice(recovery._moments(), 10))
    assert 0.2 <= moments[0] < 0.3
    assert 0.7 < moments[-1] <= 0.8
    assert max(later - sooner for sooner, later in pairwise(moments)) < 0.12


def test_the_report_has_medians_and_the_worst() -> None:
    found = [
        RecoveryTimings(detect=d, rebuild=0.1, resend=0.2, total=d + 0.3) for d in (0.1, 0.5, 0.2)
    ]
    assert recovery.report(found) == {
        "detect_seconds": 0.2,
        "rebuild_seconds": 0.1,
        "resend_seconds": 0.2,
    }
    assert recovery.details(found)["worst_seconds"] == 0.8


def test_one_of_the_receivers_dies() -> None:
    load = BenchCase(engine="gloo", receivers=3, nbytes=2, bucket_bytes=2, rounds=1)
    assert recovery.survivors(load).receivers == 2
    with pytest.raises(ValueError, match="at least two receivers"):
        recovery.survivors(recovery.survivors(recovery.survivors(load)))
