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
from rollcall_operator.plan.status.condition_state import reason_of
from rollcall_operator.plan.status.session_history import unexpected_session_messages
from rollcall_operator.plan.trainer_restart import after_restart

_PAUSES = {Reason.TOO_FEW_ROLLOUTS, Reason.WAITING_FOR_REFERENCE}
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
        *_learning_event(job, old, new),
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


def _learning_event(job: Manifest, old: RLJobStatus, new: RLJobStatus) -> Iterator[PlannedEvent]:
    """Training gets somewhere again, or has converged; that it stands still is a problem's event.

    None where it has got somewhere from the start.
    """
    before = reason_of(old.conditions, JobCondition.LEARNING)
    now = reason_of(new.conditions, JobCondition.LEARNING)
    if now in {before, *PROBLEM_REASONS} or (now == Reason.LEARNING and not before):
        return
    condition = next(c for c in new.conditions if c.type == JobCondition.LEARNING)
    yield PlannedEvent.about(job, "Normal", Reason(now), condition.message)


def _epoch_event(job: Manifest, old: RLJobStatus, new: RLJobStatus) -> Iterator[PlannedEvent]:
    group = new.default_group
    if group is not None and new.epoch != old.epoch:
        record = group.history[-1]
        rollouts = record.members - 1
        text = (
            f"epoch {record.epoch} opened for the trainer and {rollouts} "
            f"rollout{'' if rollouts == 1 else 's'} ({record.cause}): {record.message}"
        )
        yield PlannedEvent.about(job, "Normal", EventReason.EPOCH_OPENED, text)


def _phase_event(job: Manifest, old: RLJobStatus, new: RLJobStatus) -> Iterator[PlannedEvent]:
    now = new.phase
    if now == old.phase or now is None:
        return
    if old.phase == JobPhase.SUSPENDED and now in {JobPhase.STARTING, JobPhase.RUNNING}:
        text = f"spec.suspend is false: the job's pods start; {after_restart(job)}"
        yield PlannedEvent.about(job, "Normal", EventReason.RESUMED, text)
    if now in {JobPhase.SUCCEEDED, JobPhase.FAILED}:
        ended = next(c for c in new.conditions if c.type == now)
        severity = "Warning" if now == JobPhase.FAILED else "Normal"
        text = f"the job {now.lower()}: {ended.message}"
        yield PlannedEvent.about(job, severity, Reason(ended.reason), text)  # type: ignore[arg-type]
    elif now == JobPhase.RESTARTING:
        text = "training is interrupted: the trainer restarts; condition TrainerReady says why"
        yield PlannedEvent.about(job, "Warning", Reason.RESTARTING, text)
    elif now == JobPhase.STARTING and old.phase == JobPhase.RUNNING:
        yield from _pause_event(job, new)
    elif now == JobPhase.RUNNING:
        made = new.progress
        most = f" of {made.max_steps}" if made and made.max_steps else ""
        step = f" at step {made.step}{most}" if made else ""
        text = f"training is in progress{step} (phase was {old.phase or 'not set'})"
        yield PlannedEvent.about(job, "Normal", EventReason.RUNNING, text)
    elif now == JobPhase.SUSPENDED:
        text = "spec.suspend is true: the job's pods are being deleted"
        yield PlannedEvent.about(job, "Normal", Reason.SUSPENDED, text)


def _pause_event(job: Manifest, new: RLJobStatus) -> Iterator[PlannedEvent]:
    """Why a job that was training waits, unless another event says it."""
    running = next(c for c in new.conditions if c.type == JobCondition.RUNNING)
    if running.reason in _PAUSES:
        text = f"{running.message}; training then goes on by itself"
        yield PlannedEvent.about(job, "Warning", Reason(running.reason), text)
