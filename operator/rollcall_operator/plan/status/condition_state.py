"""A condition as the planner decides it, and what is read of the conditions in a status."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from rollcall_operator.api.conditions import (
    PROBLEM_REASONS,
    JobCondition,
    JobPhase,
    PoolCondition,
    Reason,
)
from rollcall_operator.api.status import Condition, RLJobStatus, RolloutPoolStatus
from rollcall_operator.plan.timestamps import to_time
from rollcall_protocol.wire.printable_text import printable_lines

_LONGEST = 2000
_STATUSES: dict[bool | None, Literal["True", "False", "Unknown"]] = {
    True: "True",
    False: "False",
    None: "Unknown",
}

SUSPENDED_TEXT = "the job is suspended (spec.suspend is true)"


@dataclass(frozen=True, slots=True)
class ConditionState:
    """A condition without its times; `status` is None where nothing is known."""

    type: JobCondition | PoolCondition
    status: bool | None
    reason: Reason
    message: str


def merge_conditions(
    old: Iterable[Condition], states: Iterable[ConditionState], *, generation: int, now: float
) -> tuple[Condition, ...]:
    """The conditions with `states` written over; those without a new state stay as they are.

    lastTransitionTime changes only when the condition's status does.
    """
    merged = {condition.type: condition for condition in old}
    for state in states:
        status = _STATUSES[state.status]
        last = merged.get(state.type)
        unchanged = last is not None and last.status == status
        merged[str(state.type)] = Condition(
            type=str(state.type),
            status=status,
            observed_generation=generation,
            last_transition_time=last.last_transition_time if last and unchanged else to_time(now),
            reason=str(state.reason),
            message=printable_lines(state.message)[:_LONGEST],
        )
    return tuple(merged.values())


def is_true(conditions: Iterable[Condition], kind: JobCondition | PoolCondition) -> bool:
    """Whether a condition is present and True."""
    return any(c.type == kind and c.status == "True" for c in conditions)


def is_unknown(conditions: Iterable[Condition], kind: JobCondition) -> bool:
    """Whether a condition is present and Unknown."""
    return any(c.type == kind and c.status == "Unknown" for c in conditions)


def reason_of(conditions: Iterable[Condition], kind: JobCondition) -> str:
    """Reason of a condition; empty if it is absent."""
    return next((c.reason for c in conditions if c.type == kind), "")


def notable_conditions(
    status: RLJobStatus | RolloutPoolStatus, *, problems_only: bool
) -> list[tuple[str, ...]]:
    """The parts of the conditions whose change is worth a write: problems with their messages, of
    the others only whether they are True.
    """
    notable: list[tuple[str, ...]] = []
    for c in status.conditions:
        if c.reason in PROBLEM_REASONS:
            notable.append((c.type, c.status, c.reason, c.message))
        elif not problems_only:
            notable.append((c.type, c.status))
    return notable


def phase_of(conditions: Sequence[Condition]) -> JobPhase:
    """The conditions in one word."""
    if is_true(conditions, JobCondition.FAILED):
        return JobPhase.FAILED
    if is_true(conditions, JobCondition.SUCCEEDED):
        return JobPhase.SUCCEEDED
    if is_true(conditions, JobCondition.SUSPENDED):
        return JobPhase.SUSPENDED
    if is_true(conditions, JobCondition.RUNNING):
        return JobPhase.RUNNING
    if is_unknown(conditions, JobCondition.RUNNING):
        return JobPhase.UNKNOWN
    if reason_of(conditions, JobCondition.RUNNING) == Reason.RESTARTING:
        return JobPhase.RESTARTING
    if is_true(conditions, JobCondition.VALIDATED) and reason_of(conditions, JobCondition.RUNNING):
        return JobPhase.STARTING
    return JobPhase.PENDING
