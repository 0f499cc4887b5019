"""What the operator is told of training."""

from rollcall_protocol.wire.learning import LearningReport, LearningState
from rollcall_runtime.coordinator.job_reporter import JobReporter
from rollcall_runtime.coordinator.persistent_state import CoordinatorState
from tests.unit.rollcall_runtime.jobs import job_config


def test_whether_training_gets_anywhere_is_reported_with_its_progress() -> None:
    reporter = JobReporter(job_config().coordinator, {})
    state = CoordinatorState(pod_uid="uid", boot=1)
    assert reporter.snapshot(state, {}, None).progress.learning is None
    report = LearningReport(LearningState.REWARDS_ALIKE, 1, 20)
    reporter.record_progress(
        step=20, number=20, reward=0.0, warning="", learning=report, steps_alike=7
    )
    progress = reporter.snapshot(state, {}, None).progress
    assert (progress.learning, progress.steps_alike) == (report, 7)
