"""The plan: random numbers of a seed alone, each kind once, nothing that does not heal in time."""

from __future__ import annotations

import pytest

from hack.soak.fault_plan import QUICK, TRAITS, FaultKind, make_plan


def test_the_same_seed_gives_the_same_plan_and_another_one_another() -> None:
    first, again, other = (make_plan(seed, 300, list(FaultKind)) for seed in (7, 7, 8))
    assert first == again != other


@pytest.mark.parametrize("seed", range(20))
def test_ten_minutes_have_more_than_thirty_faults_and_all_kinds(seed: int) -> None:
    plan = make_plan(seed, 600, list(FaultKind))
    assert len(plan) > 30
    assert {fault.kind for fault in plan} == set(FaultKind)


@pytest.mark.parametrize("seed", range(20))
def test_every_fault_heals_within_the_time_given(seed: int) -> None:
    for seconds, kinds in ((600, list(FaultKind)), (90, QUICK)):
        plan = make_plan(seed, seconds, kinds)
        assert all(0 < fault.at <= fault.ends <= seconds for fault in plan)
        assert [fault.at for fault in plan] == sorted(fault.at for fault in plan)


@pytest.mark.parametrize("seed", range(20))
def test_a_kind_does_not_overlap_itself_nor_heavy_ones_each_other(seed: int) -> None:
    plan = make_plan(seed, 600, list(FaultKind))
    for index, fault in enumerate(plan):
        for later in plan[index + 1 :]:
            if later.kind == fault.kind:
                assert later.at >= fault.ends
            if TRAITS[fault.kind].heavy and TRAITS[later.kind].heavy:
                assert later.at >= fault.ends + TRAITS[fault.kind].heavy


def test_a_time_too_short_for_a_kind_leaves_it_out() -> None:
    plan = make_plan(1, 30, [FaultKind.NODE_LOSS, FaultKind.KILL_ROLLOUT])
    assert {fault.kind for fault in plan} == {FaultKind.KILL_ROLLOUT}
