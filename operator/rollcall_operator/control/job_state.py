"""What the reconciler keeps of one job between reconciles; all of it may be lost at any time."""

import random
from dataclasses import dataclass, field

from rollcall_operator.control.coordinator_link import CoordinatorLink
from rollcall_operator.control.policy_probe import PolicyProbe
from rollcall_operator.plan.model import ReconcileMemory

Key = tuple[str, str]
"""Namespace and job name."""


@dataclass(slots=True)
class JobState:
    """The planner's memory, the link to the coordinator, and the probe of its pod.

    Only the reconciler changes it. `uid` is the job's: another job of the same name starts with an
    empty memory. `pace` is a number about 1, by which what many jobs do is spread in time.
    """

    uid: str = ""
    memory: ReconcileMemory = field(default_factory=ReconcileMemory)
    link: CoordinatorLink | None = None
    probe: PolicyProbe | None = None
    pace: float = field(default_factory=lambda: random.uniform(0.75, 1.25))  # noqa: S311
