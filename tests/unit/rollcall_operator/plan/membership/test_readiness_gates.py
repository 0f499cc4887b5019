"""The readiness gate: open while a rollout's weights are current."""

from dataclasses import replace

from rollcall_protocol.wire.job_snapshot import MemberState, TrainingResult
from tests.unit.rollcall_operator.plan.simulator import Stage


def ready_to_open() -> Stage:
    """An epoch is open and nobody has reported yet."""
    stage = Stage()
    stage.converge()
    stage.schedule()
    stage.run()
    stage.converge(0.5)
    return stage


def test_gates_open_for_those_in_sync_only() -> None:
    stage = ready_to_open()
    first, second = stage.pods_of("bad-cpu")
    stage.report(states={second.uid: MemberState.CATCHING_UP})
    (gate,) = stage.reconcile().gates
    assert (gate.pod, gate.uid, gate.in_sync, gate.reason) == (
        first.name, first.uid, True, "InSync",
    )  # fmt: skip


def test_a_gate_that_was_never_open_is_not_closed() -> None:
    stage = ready_to_open()
    stage.report(states=dict.fromkeys(stage.pods, MemberState.REGISTERED))
    assert stage.reconcile().gates == ()


def test_an_open_gate_is_not_opened_again() -> None:
    stage = Stage()
    stage.to_running()
    assert stage.reconcile(60).gates == ()


def test_a_stale_rollout_is_taken_out_and_the_reason_kept() -> None:
    stage = Stage()
    stage.to_running()
    victim = stage.pods_of("bad-cpu")[0]
    stage.report(states={victim.uid: MemberState.STALE})
    (gate,) = stage.reconcile().gates
    assert (gate.uid, gate.in_sync, gate.reason) == (victim.uid, False, "Stale")


def test_news_of_an_older_epoch_moves_no_gate() -> None:
    stage = Stage()
    stage.to_running()
    assert stage.snapshot is not None
    stage.snapshot = replace(stage.snapshot, roster_epoch=0, members=())
    assert stage.reconcile().gates == ()


def test_no_news_moves_no_gate() -> None:
    stage = Stage()
    stage.to_running()
    stage.snapshot = None
    assert stage.reconcile().gates == ()


def test_gates_of_a_finished_job_are_left_alone() -> None:
    stage = Stage({"spec.cleanPodPolicy": "None"})
    stage.to_running()
    stage.report(
        states=dict.fromkeys(stage.pods, MemberState.STALE), finished=TrainingResult(step=200)
    )
    assert stage.reconcile(1).gates == ()
