"""What counts as an attack that was refused."""

import pytest

from hack.attacks.attack import ATTACKS, Attack, attack
from hack.attacks.catalogue import all_attacks
from hack.attacks.outcome import AttackOutcome, grown, peaks, steps_lost
from hack.attacks.target import AttackedJob
from hack.attacks.worker_vitals import WorkerMemory


async def nothing(_: AttackedJob) -> None:
    """Does nothing."""


COUNTED = Attack(name="an attack", role="unauthenticated", counted=("no_token",), run=nothing)
UNCOUNTED = Attack(name="another", role="unauthenticated", counted=(), run=nothing)


def outcome(
    *,
    of: Attack = COUNTED,
    problem: str = "",
    counted: float = 3.0,
    exits: int = 0,
    peak: float = 100.0,
) -> AttackOutcome:
    return AttackOutcome(
        attack=of,
        problem=problem,
        counted=counted,
        steps_lost_seconds=0.456,
        worker_exits=exits,
        peaks={"trainer": (peak, 100.0), "rollout": (50.0, 60.0)},
    )


def test_an_attack_that_was_refused_and_counted_is_as_promised() -> None:
    assert outcome().failures() == []
    assert outcome().row() == {
        "refused": True,
        "counted": 3,
        "steps_lost_seconds": 0.46,
        "peak_mib": 100.0,
        "peak_share": 1.0,
        "worker_exits": 0,
    }


@pytest.mark.parametrize(
    ("seen", "failure"),
    [
        (outcome(problem="it was taken"), "it was taken"),
        (outcome(counted=0), "nothing was counted as no_token"),
        (outcome(exits=1), "1 workers ended"),
        (outcome(peak=126.0), "a worker used 1.26 of its memory before"),
    ],
)
def test_what_is_not_as_promised_is_named(seen: AttackOutcome, failure: str) -> None:
    assert seen.failures() == [failure]


def test_an_attack_of_which_no_count_is_promised_needs_none() -> None:
    assert outcome(of=UNCOUNTED, counted=0).failures() == []


def test_steps_that_were_not_done_are_time_lost() -> None:
    assert steps_lost(seconds=10.0, steps=20, steps_a_second=4.0) == 5.0
    assert steps_lost(seconds=10.0, steps=50, steps_a_second=4.0) == 0.0
    assert steps_lost(seconds=10.0, steps=0, steps_a_second=0.0) == 0.0, "the rate is not known"


def test_counters_grow_from_where_they_were() -> None:
    before, after = {"no_token": 2.0, "expired": 1.0}, {"no_token": 5.0, "expired": 2.0, "other": 9}
    assert grown(before, after, ("no_token", "malformed")) == 3.0


def test_a_peak_is_compared_with_the_workers_own_before() -> None:
    before = {"trainer": WorkerMemory(now=90.0, peak=100.0)}
    after = {"trainer": WorkerMemory(110.0, 120.0), "newcomer": WorkerMemory(10.0, 10.0)}
    assert peaks(before, after) == {"trainer": (120.0, 100.0)}


def test_each_attack_says_what_it_does_and_has_a_name_of_its_own() -> None:
    found = all_attacks()
    assert len(found) >= 60
    assert [a.name for a in found if not a.what] == []
    with pytest.raises(ValueError, match="two attacks are called no_token"):
        attack("unauthenticated", name="no_token")(nothing)
    assert {a.name for a in found} == set(ATTACKS)
