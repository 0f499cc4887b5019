"""A condition as the planner decides it, before it is merged with the stored ones."""

from dataclasses import dataclass

from rollcall_operator.api.conditions import JobCondition, PoolCondition, Reason

SUSPENDED_TEXT = "the job is suspended (spec.suspend is true)"


@dataclass(frozen=True, slots=True)
class ConditionState:
    """A condition without its times; `status` is None where nothing is known."""

    type: JobCondition | PoolCondition
    status: bool | None
    reason: Reason
    message: str
