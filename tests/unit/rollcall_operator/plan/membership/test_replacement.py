"""Rollouts that are replaced: drained by a call, or missed for longer than the bound."""

from dataclasses import replace

import pytest

from rollcall_operator.plan.model import Memory, Plan
from rollcall_protocol.wire.job_snapshot import MemberState
from tests.unit.rollcall_operator.plan.simulator import Stage

POOL, BOUND = "bad-cpu", 60
SUSPECT, DRAINING, GONE = MemberState.SUSPECT, MemberState.DRAINING, MemberState.GONE


def running(replicas: int = 3, bound: int = BOUND) -> Stage:
    """Running for long, so that no pod is young."""
    stage = Stage(
        {
            "spec.rollouts[0].replicas": replicas,
            "spec.membership": {"replaceAfterSeconds": bound},
        }
    )
    stage.to_running()
    stage.converge(1000)
    return stage


def removed(plan: Plan) -> list[str]:
    assert not any(removal.force for removal in plan.removals)
    return [removal.uid for removal in plan.removals]


def uids(stage: Stage) -> list[str]:
    return [pod.uid for pod in stage.pods_of(POOL)]


# --- suspects ------------------------------------------------------------------------------------


def test_a_suspect_is_replaced_after_the_bound_and_no_sooner() -> None:
    stage = running()
    suspect = uids(stage)[0]
    stage.report(states={suspect: SUSPECT}, reasons={suspect: "heartbeat missed"})
    first = stage.converge()
    assert first.requeue_after is not None
    assert first.requeue_after <= BOUND
    assert removed(stage.reconcile(BOUND - 1)) == []
    plan = stage.reconcile(1)
    assert removed(plan) == [suspect]
    (note,) = (note for note in plan.events if note.reason == "RolloutReplaced")
    assert "heartbeat missed" in note.message


def test_one_that_never_registered_is_replaced_too() -> None:
    stage = running()
    silent = uids(stage)[1]
    stage.report(silent=[silent])
    stage.converge()
    plan = stage.reconcile(BOUND)
    assert removed(plan) == [silent]
    assert "never registered" in plan.events[-1].message


def test_one_that_still_loads_its_model_has_the_time_of_its_startup_probe() -> None:
    stage = running()
    pod = stage.pods_of(POOL)[0]
    stage.change(pod, up=False)
    stage.report(silent=[pod.uid])
    stage.converge()
    assert removed(stage.reconcile(10 * BOUND)) == []
    stage.change(stage.pods[pod.uid], up=True)
    stage.converge()
    assert removed(stage.reconcile(BOUND)) == [pod.uid]


def test_who_comes_back_begins_anew() -> None:
    stage = running()
    suspect = uids(stage)[0]
    stage.report(states={suspect: SUSPECT})
    stage.converge(BOUND - 1)
    stage.report()
    stage.converge()
    stage.report(states={suspect: SUSPECT})
    stage.converge(5)
    assert removed(stage.reconcile(BOUND - 10)) == []


@pytest.mark.parametrize("state", [MemberState.STALE, MemberState.CATCHING_UP])
def test_who_is_only_behind_is_not_replaced(state: MemberState) -> None:
    stage = running()
    stage.report(states={uids(stage)[0]: state})
    stage.converge()
    assert removed(stage.reconcile(10 * BOUND)) == []


def test_zero_never_replaces() -> None:
    stage = running(bound=0)
    stage.report(states={uids(stage)[0]: SUSPECT})
    stage.converge()
    assert removed(stage.reconcile(100_000)) == []


def test_a_container_that_the_kubelet_restarts_is_left_to_it() -> None:
    stage = running()
    pod = stage.pods_of(POOL)[0]
    stage.report(states={pod.uid: SUSPECT})
    stage.change(pod, running=False, waiting_reason="CrashLoopBackOff")
    stage.converge()
    stage.report()
    assert removed(stage.reconcile(10 * BOUND)) == []


# --- a mistake must not delete everybody ---------------------------------------------------------


def test_of_a_small_pool_one_is_replaced_at_a_time() -> None:
    stage = running(replicas=4)
    everybody = uids(stage)
    stage.report(states=dict.fromkeys(everybody, SUSPECT))
    stage.converge()
    assert removed(stage.reconcile(BOUND)) == everybody[:1]
    assert removed(stage.reconcile(1)) == []  # another is still to come
    stage.schedule()
    stage.converge(1)
    stage.report(states=dict.fromkeys(everybody, SUSPECT))
    assert removed(stage.reconcile(BOUND - 5)) == []  # it is young
    assert removed(stage.reconcile(5)) == everybody[1:2]


def test_of_a_large_pool_a_tenth_is_replaced_at_a_time() -> None:
    stage = running(replicas=30)
    stage.report(states=dict.fromkeys(uids(stage), SUSPECT))
    stage.converge()
    assert len(removed(stage.reconcile(BOUND))) == 3


def test_a_restart_of_the_operator_does_not_lift_the_cap() -> None:
    stage = running(replicas=4)
    stage.report(states=dict.fromkeys(uids(stage), SUSPECT))
    stage.converge()
    assert len(removed(stage.reconcile(BOUND))) == 1
    stage.memory = Memory()
    stage.schedule()
    stage.converge(1)
    stage.report(states=dict.fromkeys(uids(stage)[:3], SUSPECT))
    assert removed(stage.reconcile(1)) == []


def test_one_that_hangs_in_its_end_for_ever_does_not_block_the_others() -> None:
    stage = running(replicas=4)
    first, second, *_ = stage.pods_of(POOL)
    stage.change(first, terminating=True, leaves_by=stage.now - 1)
    stage.scale(POOL, 3)
    stage.converge()
    stage.report(states={second.uid: SUSPECT})
    stage.converge()
    assert removed(stage.reconcile(BOUND)) == [second.uid]


# --- who is away ---------------------------------------------------------------------------------


def test_the_clock_survives_a_restart_of_the_operator_in_the_closed_gate() -> None:
    stage = running()
    suspect = uids(stage)[0]
    stage.report(states={suspect: SUSPECT})
    stage.converge()
    stage.memory = Memory()
    stage.converge(BOUND - 20)
    assert removed(stage.reconcile(20)) == [suspect]


def test_a_coordinator_that_began_while_the_operator_was_away_gives_the_whole_bound() -> None:
    stage = running()
    suspect = uids(stage)[0]
    stage.report(states={suspect: SUSPECT})
    stage.converge()
    stage.now += BOUND - 10
    stage.change(stage.trainer, started=stage.now)
    stage.memory = Memory()
    stage.report(silent=[suspect], boot=2)
    stage.converge(20)
    assert removed(stage.reconcile(BOUND - 21)) == []
    assert removed(stage.reconcile(1)) == [suspect]


def test_without_such_a_gate_a_new_operator_waits_for_the_whole_bound() -> None:
    stage = running()
    silent = stage.pods_of(POOL)[0]
    stage.change(silent, gate=None)
    stage.report(silent=[silent.uid])
    stage.converge()
    stage.memory = Memory()
    stage.converge(BOUND - 1)
    assert removed(stage.reconcile(BOUND - 1)) == []
    assert removed(stage.reconcile(1)) == [silent.uid]


def test_another_life_of_the_coordinator_gives_everybody_the_whole_bound() -> None:
    stage = running()
    suspect = uids(stage)[0]
    stage.report(states={suspect: SUSPECT})
    stage.converge(BOUND - 1)
    stage.report(silent=[suspect], boot=2)
    stage.converge(1)
    assert removed(stage.reconcile(BOUND - 1)) == []
    assert removed(stage.reconcile(1)) == [suspect]


def test_without_news_of_the_current_epoch_nobody_is_replaced() -> None:
    stage = running()
    suspect = uids(stage)[0]
    stage.report(states={suspect: SUSPECT})
    stage.converge()
    assert stage.snapshot is not None
    heard = stage.snapshot
    for unknown in (None, replace(heard, roster_epoch=0)):
        stage.snapshot = unknown
        assert removed(stage.reconcile(BOUND)) == []
    stage.snapshot = heard
    assert removed(stage.reconcile()) == [suspect]


# --- drained by a call ---------------------------------------------------------------------------


def test_a_rollout_that_was_asked_to_drain_is_replaced_at_once() -> None:
    stage = running()
    asked = uids(stage)[0]
    stage.report(states={asked: DRAINING}, reasons={asked: "spot notice"})
    plan = stage.reconcile()
    assert removed(plan) == [asked]
    assert "spot notice" in plan.events[-1].message


def test_one_that_drains_because_of_a_signal_is_left_to_who_sent_it() -> None:
    stage = running()
    signalled = uids(stage)[0]
    stage.report(states={signalled: DRAINING}, reasons={signalled: "SIGTERM"})
    assert removed(stage.reconcile()) == []


def test_one_that_left_in_order_is_replaced_unless_the_kubelet_restarts_it() -> None:
    stage = running()
    gone, restarted = stage.pods_of(POOL)[:2]
    stage.report(states={gone.uid: GONE, restarted.uid: GONE})
    first = stage.converge()
    assert removed(first) == []
    assert first.requeue_after is not None
    assert first.requeue_after <= 5
    stage.change(restarted, running=False)
    stage.converge(1)
    stage.report(states={gone.uid: GONE})
    assert removed(stage.reconcile(4)) == [gone.uid]


def test_zero_for_suspects_does_not_keep_the_drained() -> None:
    stage = running(bound=0)
    gone = uids(stage)[0]
    stage.report(states={gone: GONE})
    stage.converge()
    assert removed(stage.reconcile(5)) == [gone]
