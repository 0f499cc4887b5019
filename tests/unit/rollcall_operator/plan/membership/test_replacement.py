"""Rollouts that are replaced: drained by a call, or missed for longer than the bound."""

from dataclasses import replace

import pytest

from rollcall_operator.plan.model import JobPlan, ReconcileMemory
from rollcall_protocol.wire.job_snapshot import MemberState
from tests.unit.rollcall_operator.plan.simulator import JobSimulator

POOL, BOUND = "bad-cpu", 60
SUSPECT, DRAINING, GONE = MemberState.SUSPECT, MemberState.DRAINING, MemberState.GONE


def running(replicas: int = 3, bound: int = BOUND) -> JobSimulator:
    """Running for long, so that no pod is young."""
    simulator = JobSimulator(
        {
            "spec.rollouts[0].replicas": replicas,
            "spec.membership": {"replaceAfterSeconds": bound},
        }
    )
    simulator.to_running()
    simulator.converge(1000)
    return simulator


def removed(plan: JobPlan) -> list[str]:
    assert not any(removal.force for removal in plan.pod_deletions)
    return [removal.uid for removal in plan.pod_deletions]


def uids(simulator: JobSimulator) -> list[str]:
    return [pod.uid for pod in simulator.pods_of(POOL)]


# --- suspects ------------------------------------------------------------------------------------


def test_a_suspect_is_replaced_after_the_bound_and_no_sooner() -> None:
    simulator = running()
    suspect = uids(simulator)[0]
    simulator.report(states={suspect: SUSPECT}, reasons={suspect: "heartbeat missed"})
    first = simulator.converge()
    assert first.requeue_after is not None
    assert first.requeue_after <= BOUND
    assert removed(simulator.reconcile(BOUND - 1)) == []
    plan = simulator.reconcile(1)
    assert removed(plan) == [suspect]
    (event,) = (event for event in plan.events if event.reason == "RolloutReplaced")
    assert "heartbeat missed" in event.message


def test_one_that_never_registered_is_replaced_too() -> None:
    simulator = running()
    silent = uids(simulator)[1]
    simulator.report(silent=[silent])
    simulator.converge()
    plan = simulator.reconcile(BOUND)
    assert removed(plan) == [silent]
    assert "never registered" in plan.events[-1].message


def test_one_that_still_loads_its_model_has_the_time_of_its_startup_probe() -> None:
    simulator = running()
    pod = simulator.pods_of(POOL)[0]
    simulator.change(pod, up=False)
    simulator.report(silent=[pod.uid])
    simulator.converge()
    assert removed(simulator.reconcile(10 * BOUND)) == []
    simulator.change(simulator.pods[pod.uid], up=True)
    simulator.converge()
    assert removed(simulator.reconcile(BOUND)) == [pod.uid]


def test_a_rollout_that_returns_has_the_whole_bound_again() -> None:
    simulator = running()
    suspect = uids(simulator)[0]
    simulator.report(states={suspect: SUSPECT})
    simulator.converge(BOUND - 1)
    simulator.report()
    simulator.converge()
    simulator.report(states={suspect: SUSPECT})
    simulator.converge(5)
    assert removed(simulator.reconcile(BOUND - 10)) == []


@pytest.mark.parametrize("state", [MemberState.STALE, MemberState.CATCHING_UP])
def test_a_rollout_that_is_only_behind_is_not_replaced(state: MemberState) -> None:
    simulator = running()
    simulator.report(states={uids(simulator)[0]: state})
    simulator.converge()
    assert removed(simulator.reconcile(10 * BOUND)) == []


def test_zero_never_replaces() -> None:
    simulator = running(bound=0)
    simulator.report(states={uids(simulator)[0]: SUSPECT})
    simulator.converge()
    assert removed(simulator.reconcile(100_000)) == []


def test_a_container_that_the_kubelet_restarts_is_left_to_it() -> None:
    simulator = running()
    pod = simulator.pods_of(POOL)[0]
    simulator.report(states={pod.uid: SUSPECT})
    simulator.change(pod, running=False, waiting_reason="CrashLoopBackOff")
    simulator.converge()
    simulator.report()
    assert removed(simulator.reconcile(10 * BOUND)) == []


# --- a mistake must not delete all rollouts--------------------------------------------------------


def test_of_a_small_pool_one_is_replaced_at_a_time() -> None:
    simulator = running(replicas=4)
    all_rollouts = uids(simulator)
    simulator.report(states=dict.fromkeys(all_rollouts, SUSPECT))
    simulator.converge()
    assert removed(simulator.reconcile(BOUND)) == all_rollouts[:1]
    assert removed(simulator.reconcile(1)) == []  # another is still to come
    simulator.schedule()
    simulator.converge(1)
    simulator.report(states=dict.fromkeys(all_rollouts, SUSPECT))
    assert removed(simulator.reconcile(BOUND - 5)) == []  # it is young
    assert removed(simulator.reconcile(5)) == all_rollouts[1:2]


@pytest.mark.parametrize(("replicas", "at_once"), [(19, 1), (29, 2), (30, 3)])
def test_of_a_large_pool_a_tenth_is_replaced_at_a_time(replicas: int, at_once: int) -> None:
    simulator = running(replicas=replicas)
    simulator.report(states=dict.fromkeys(uids(simulator), SUSPECT))
    simulator.converge()
    assert len(removed(simulator.reconcile(BOUND))) == at_once


def test_a_restart_of_the_operator_does_not_lift_the_cap() -> None:
    simulator = running(replicas=4)
    simulator.report(states=dict.fromkeys(uids(simulator), SUSPECT))
    simulator.converge()
    assert len(removed(simulator.reconcile(BOUND))) == 1
    simulator.memory = ReconcileMemory()
    simulator.schedule()
    simulator.converge(1)
    simulator.report(states=dict.fromkeys(uids(simulator)[:3], SUSPECT))
    assert removed(simulator.reconcile(1)) == []


def test_one_that_hangs_in_its_end_for_ever_does_not_block_the_others() -> None:
    simulator = running(replicas=4)
    first, second, *_ = simulator.pods_of(POOL)
    simulator.change(first, terminating=True, leaves_by=simulator.now - 1)
    simulator.scale(POOL, 3)
    simulator.converge()
    simulator.report(states={second.uid: SUSPECT})
    simulator.converge()
    assert removed(simulator.reconcile(BOUND)) == [second.uid]


# --- who is away ---------------------------------------------------------------------------------


def test_the_clock_survives_a_restart_of_the_operator_in_the_closed_gate() -> None:
    simulator = running()
    suspect = uids(simulator)[0]
    simulator.report(states={suspect: SUSPECT})
    simulator.converge()
    simulator.memory = ReconcileMemory()
    simulator.converge(BOUND - 20)
    assert removed(simulator.reconcile(20)) == [suspect]


def test_a_coordinator_that_began_while_the_operator_was_away_gives_the_whole_bound() -> None:
    simulator = running()
    suspect = uids(simulator)[0]
    simulator.report(states={suspect: SUSPECT})
    simulator.converge()
    simulator.now += BOUND - 10
    simulator.change(simulator.trainer, started=simulator.now)
    simulator.memory = ReconcileMemory()
    simulator.report(silent=[suspect], boot=2)
    simulator.converge(20)
    assert removed(simulator.reconcile(BOUND - 21)) == []
    assert removed(simulator.reconcile(1)) == [suspect]


def test_without_such_a_gate_a_new_operator_waits_for_the_whole_bound() -> None:
    simulator = running()
    silent = simulator.pods_of(POOL)[0]
    simulator.change(silent, gate=None)
    simulator.report(silent=[silent.uid])
    simulator.converge()
    simulator.memory = ReconcileMemory()
    simulator.converge(BOUND - 1)
    assert removed(simulator.reconcile(BOUND - 1)) == []
    assert removed(simulator.reconcile(1)) == [silent.uid]


def test_a_restarted_coordinator_gives_every_rollout_the_whole_bound() -> None:
    simulator = running()
    suspect = uids(simulator)[0]
    simulator.report(states={suspect: SUSPECT})
    simulator.converge(BOUND - 1)
    simulator.report(silent=[suspect], boot=2)
    simulator.converge(1)
    assert removed(simulator.reconcile(BOUND - 1)) == []
    assert removed(simulator.reconcile(1)) == [suspect]


def test_without_a_snapshot_of_the_current_epoch_no_rollout_is_replaced() -> None:
    simulator = running()
    suspect = uids(simulator)[0]
    simulator.report(states={suspect: SUSPECT})
    simulator.converge()
    assert simulator.snapshot is not None
    current = simulator.snapshot
    for unknown in (None, replace(current, roster_epoch=0)):
        simulator.snapshot = unknown
        assert removed(simulator.reconcile(BOUND)) == []
    simulator.snapshot = current
    assert removed(simulator.reconcile()) == [suspect]


# --- drained by a call ---------------------------------------------------------------------------


def test_a_rollout_that_was_asked_to_drain_is_replaced_at_once() -> None:
    simulator = running()
    asked = uids(simulator)[0]
    simulator.report(states={asked: DRAINING}, reasons={asked: "spot notice"})
    plan = simulator.reconcile()
    assert removed(plan) == [asked]
    assert "spot notice" in plan.events[-1].message


def test_a_rollout_that_drains_because_of_a_signal_is_not_replaced() -> None:
    simulator = running()
    signalled = uids(simulator)[0]
    simulator.report(states={signalled: DRAINING}, reasons={signalled: "SIGTERM"})
    assert removed(simulator.reconcile()) == []


def test_one_that_left_in_order_is_replaced_unless_the_kubelet_restarts_it() -> None:
    simulator = running()
    gone, restarted = simulator.pods_of(POOL)[:2]
    simulator.report(states={gone.uid: GONE, restarted.uid: GONE})
    first = simulator.converge()
    assert removed(first) == []
    assert first.requeue_after is not None
    assert first.requeue_after <= 5
    simulator.change(restarted, running=False)
    simulator.converge(1)
    simulator.report(states={gone.uid: GONE})
    assert removed(simulator.reconcile(4)) == [gone.uid]


def test_zero_for_suspects_does_not_keep_the_drained() -> None:
    simulator = running(bound=0)
    gone = uids(simulator)[0]
    simulator.report(states={gone: GONE})
    simulator.converge()
    assert removed(simulator.reconcile(5)) == [gone]
