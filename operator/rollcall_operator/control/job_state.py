"""What the operator keeps of one job between reconciles; all of it may be lost at any time."""

from dataclasses import dataclass, field

from rollcall_operator.control.coordinator_link import CoordinatorLink
from rollcall_operator.kube.client import Object
from rollcall_operator.plan.model import ReconcileMemory, Refusal

Key = tuple[str, str]
"""Namespace and job name."""


@dataclass(slots=True)
class RefusedChild:
    """A child that the API server refused, and when to ask again (monotonic seconds)."""

    body: Object
    refusal: Refusal
    retry_at: float
    attempts: int = 1


@dataclass(slots=True)
class JobState:
    """One job's memory: the planner's own, refused children, the link to its coordinator.

    `uid` is the job's: another job of the same name starts with an empty memory.
    """

    uid: str = ""
    memory: ReconcileMemory = field(default_factory=ReconcileMemory)
    refused: dict[str, RefusedChild] = field(default_factory=dict)
    link: CoordinatorLink | None = None
