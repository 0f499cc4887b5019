"""Events: once each, for what a person would want to be told."""

from rollcall_protocol.wire.job_snapshot import TrainingResult
from tests.unit.rollcall_operator.plan.simulator import Stage


def reasons(stage: Stage) -> list[tuple[str, str]]:
    return [(note.type, note.reason) for plan in stage.plans for note in plan.events]


def test_a_good_start_is_three_events_at_most() -> None:
    stage = Stage()
    stage.to_running()
    assert reasons(stage) == [("Normal", "NewEpoch"), ("Normal", "Running")]


def test_an_epoch_says_why() -> None:
    stage = Stage()
    stage.to_running()
    victim = stage.change(stage.pods_of("bad-cpu")[0], terminating=True)
    (note,) = stage.reconcile(1).events
    assert note.reason == "NewEpoch"
    said = f"epoch 2 with 2 members: MemberLost; lost: {victim.name} (being deleted)"
    assert note.message == said
    assert note.regarding["kind"] == "RLJob"


def test_trouble_is_told_once() -> None:
    stage = Stage()
    stage.converge()
    stage.schedule()
    pod = stage.pods_of("bad-cpu")[0]
    for count in range(5):
        stage.change(pod, waiting_reason="ErrImagePull" if count % 2 else "ImagePullBackOff")
        stage.reconcile(30)
    assert reasons(stage) == [("Warning", "ImagePullFailed")]


def test_the_end_is_told() -> None:
    stage = Stage()
    stage.to_running()
    stage.report(finished=TrainingResult(step=9, error="diverged"))
    stage.converge(1)
    stage.converge(60)
    assert reasons(stage)[-1] == ("Warning", "TrainingFailed")
    assert stage.plans[-1].events == ()


def test_a_reconcile_that_changes_nothing_is_no_event() -> None:
    stage = Stage()
    stage.to_running()
    stage.converge(60)
    before = len(reasons(stage))
    for _ in range(10):
        stage.reconcile(60)
    assert len(reasons(stage)) == before
