"""Events about changes of a status; each is recorded once, when that status is written."""

from collections.abc import Iterator

from rollcall_operator.api.conditions import (
    PROBLEM_REASONS,
    EventReason,
    JobCondition,
    JobPhase,
    PoolCondition,
    Reason,
)
from rollcall_operator.api.status import RLJobStatus, RolloutPoolStatus
from rollcall_operator.plan.model import Manifest, PlannedEvent
from rollcall_operator.plan.status.session_history import unexpected_session_messages

_COVERED = {JobCondition.FAILED, JobCondition.RUNNING}
"""The event of the phase covers these; that of JobFound covers a pool that is not Ready for it."""


def job_events(job: Manifest, old: RLJobStatus, new: RLJobStatus) -> tuple[PlannedEvent, ...]:
    """What changed between the stored status of a job and the one about to be written."""
    rebuilt = (
        PlannedEvent.about(job, "Normal", EventReason.SESSION_REBUILT, text)
        for text in unexpected_session_messages(old, new)
    )
    return (
        *_problem_events(job, old, new),
        *_epoch_event(job, old, new),
        *rebuilt,
        *_phase_event(job, old, new),
    )


def pool_events(
    pool: Manifest, old: RolloutPoolStatus, new: RolloutPoolStatus
) -> tuple[PlannedEvent, ...]:
    """New problems of a pool."""
    return tuple(_problem_events(pool, old, new))


def _problem_events(
    subject: Manifest,
    old: RLJobStatus | RolloutPoolStatus,
    new: RLJobStatus | RolloutPoolStatus,
) -> Iterator[PlannedEvent]:
    """A warning for each condition that has got a reason of PROBLEM_REASONS."""
    before = {(c.type, c.reason) for c in old.conditions}
    for condition in new.conditions:
        if condition.reason not in PROBLEM_REASONS or condition.type in _COVERED:
            continue
        if condition.type == PoolCondition.READY and condition.reason == Reason.JOB_NOT_FOUND:
            continue
        if (condition.type, condition.reason) not in before:
            reason = Reason(condition.reason)
            yield PlannedEvent.about(subject, "Warning", reason, condition.message)


def _epoch_event(job: Manifest, old: RLJobStatus, new: RLJobStatus) -> Iterator[PlannedEvent]:
    group = new.default_group
    if group is not None and new.epoch != old.epoch:
        record = group.history[-1]
        text = (
            f"epoch {record.epoch} opened for the trainer and {record.members - 1} rollouts "
            f"({record.cause}): {record.message}"
        )
        yield PlannedEvent.about(job, "Normal", EventReason.EPOCH_OPENED, text)


def _phase_event(job: Manifest, old: RLJobStatus, new: RLJobStatus) -> Iterator[PlannedEvent]:
    now = new.phase
    if now == old.phase or now is None:
        return
    if now in {JobPhase.SUCCEEDED, JobPhase.FAILED}:
        ended = next(c for c in new.conditions if c.type == now)
        severity = "Warning" if now == JobPhase.FAILED else "Normal"
        text = f"the job {now.lower()}: {ended.message}"
        yield PlannedEvent.about(job, severity, Reason(ended.reason), text)  # type: ignore[arg-type]
    elif now == JobPhase.RESTARTING:
        text = "training is interrupted: the trainer restarts; condition TrainerReady says why"
        yield PlannedEvent.about(job, "Warning", Reason.RESTARTING, text)
    elif now == JobPhase.RUNNING:
        before = old.phase or "not set"
        text = f"training is in progress (phase was {before})"
        yield PlannedEvent.about(job, "Normal", EventReason.RUNNING, text)
    elif now == JobPhase.SUSPENDED:
        text = "spec.suspend is true: the job's pods are being deleted"
        yield PlannedEvent.about(job, "Normal", Reason.SUSPENDED, text)
