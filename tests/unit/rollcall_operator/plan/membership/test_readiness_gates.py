"""The readiness gate: open while a rollout's weights are current."""

from dataclasses import replace

from rollcall_protocol.wire.job_snapshot import MemberState, TrainingResult
from tests.unit.rollcall_operator.plan.simulator import JobSimulator


def ready_to_open() -> JobSimulator:
    """An epoch is open and no member has reported yet."""
    simulator = JobSimulator()
    simulator.converge()
    simulator.schedule()
    simulator.run()
    simulator.converge(0.5)
    return simulator


def test_gates_open_for_those_in_sync_only() -> None:
    simulator = ready_to_open()
    first, second = simulator.pods_of("bad-cpu")
    simulator.report(states={second.uid: MemberState.CATCHING_UP})
    (gate,) = simulator.reconcile().gates
    assert (gate.pod, gate.uid, gate.in_sync, gate.reason) == (
        first.name,
        first.uid,
        True,
        "InSync",
    )


def test_a_gate_that_was_never_open_is_not_closed() -> None:
    simulator = ready_to_open()
    simulator.report(states=dict.fromkeys(simulator.pods, MemberState.REGISTERED))
    assert simulator.reconcile().gates == ()


def test_an_open_gate_is_not_opened_again() -> None:
    simulator = JobSimulator()
    simulator.to_running()
    assert simulator.reconcile(60).gates == ()


def test_a_stale_rollout_is_taken_out_and_the_reason_kept() -> None:
    simulator = JobSimulator()
    simulator.to_running()
    victim = simulator.pods_of("bad-cpu")[0]
    simulator.report(states={victim.uid: MemberState.STALE})
    (gate,) = simulator.reconcile().gates
    assert (gate.uid, gate.in_sync, gate.reason) == (victim.uid, False, "Stale")


def test_one_that_has_not_registered_is_no_member() -> None:
    simulator = JobSimulator()
    simulator.to_running()
    silent = simulator.pods_of("bad-cpu")[0]
    simulator.report(silent=[silent.uid])
    (gate,) = simulator.reconcile().gates
    assert (gate.uid, gate.in_sync, gate.reason) == (silent.uid, False, "NotAMember")


def test_news_of_an_older_epoch_moves_no_gate() -> None:
    simulator = JobSimulator()
    simulator.to_running()
    assert simulator.snapshot is not None
    simulator.snapshot = replace(simulator.snapshot, roster_epoch=0, members=())
    assert simulator.reconcile().gates == ()


def test_no_news_moves_no_gate() -> None:
    simulator = JobSimulator()
    simulator.to_running()
    simulator.snapshot = None
    assert simulator.reconcile().gates == ()


def test_gates_of_a_finished_job_are_left_alone() -> None:
    simulator = JobSimulator({"spec.cleanPodPolicy": "None"})
    simulator.to_running()
    simulator.report(
        states=dict.fromkeys(simulator.pods, MemberState.STALE), finished=TrainingResult(step=200)
    )
    assert simulator.reconcile(1).gates == ()
