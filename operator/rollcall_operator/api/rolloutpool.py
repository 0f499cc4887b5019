"""RolloutPool: an elastic set of inference workers that serve one job."""

from typing import Annotated, Any, ClassVar

from pydantic import Field

from rollcall_operator.api.labels import GROUP_DEFAULT
from rollcall_operator.api.rules import Model, Rule
from rollcall_operator.api.scalars import (
    POOL_NAME_MAX,
    GroupName,
    JobName,
    Replicas,
    RolloutEngineName,
    Seconds,
    named,
)
from rollcall_operator.api.template import PodTemplate

EngineConfig = Annotated[
    dict[str, Any],
    Field(max_length=256, default_factory=dict, json_schema_extra={"default": {}}),
]


class RolloutEngineSpec(Model):
    """An inference engine by name, with its own settings."""

    name: RolloutEngineName
    """A builtin engine, or one that the image registers by entry point (a qualified name)."""
    config: EngineConfig
    """Settings that only this engine reads."""


class DrainSpec(Model):
    """How a rollout leaves."""

    timeout_seconds: Seconds = 30
    """How long a leaving rollout may finish or hand back its prompts."""


# minReplicas <= replicas <= maxReplicas, whichever are given.
_BOUNDS = (
    Rule(
        message="must not be above maxReplicas; raise maxReplicas or lower minReplicas",
        cel="!has(self.minReplicas) || !has(self.maxReplicas) || "
        "self.minReplicas <= self.maxReplicas",
        holds=lambda s: (
            s.min_replicas is None or s.max_replicas is None or s.min_replicas <= s.max_replicas
        ),
        path=".minReplicas",
    ),
    Rule(
        message="must not be below minReplicas; raise replicas or lower minReplicas",
        cel="!has(self.minReplicas) || self.replicas >= self.minReplicas",
        holds=lambda s: s.min_replicas is None or s.replicas >= s.min_replicas,
        path=".replicas",
    ),
    Rule(
        message="must not be above maxReplicas; lower replicas or raise maxReplicas",
        cel="!has(self.maxReplicas) || self.replicas <= self.maxReplicas",
        holds=lambda s: s.max_replicas is None or s.replicas <= s.max_replicas,
        path=".replicas",
    ),
)


class RolloutBase(Model):
    """What an entry of a job's `rollouts` and a RolloutPool have in common."""

    RULES: ClassVar[tuple[Rule, ...]] = _BOUNDS

    replicas: Replicas = 1
    """How many rollouts to run."""
    min_replicas: Replicas | None = None
    """The fewest that anybody may scale this pool to."""
    max_replicas: Replicas | None = None
    """The most that anybody may scale this pool to."""
    engine: RolloutEngineSpec
    """What generates."""
    sync_group: GroupName = GROUP_DEFAULT
    """The sync group through which it gets weights: `default`, or one of the job's
    weightSync.groups."""
    drain: DrainSpec = Field(default_factory=DrainSpec, json_schema_extra={"default": {}})
    template: PodTemplate
    """The pods. The container named `rollout`, or the only one, is the worker."""


class JobRef(Model):
    """An RLJob of the same namespace."""

    name: JobName
    """The job's name."""


class RolloutPoolSpec(RolloutBase):
    """Rollouts lent to one job. May be applied and deleted while the job runs."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        *RolloutBase.RULES,
        Rule(
            message="is immutable; delete the pool and apply it again for another job",
            cel="self.jobRef == oldSelf.jobRef",
            path=".jobRef",
        ),
    )

    job_ref: JobRef
    """The job that the rollouts serve."""


POOL_RULES = (named(POOL_NAME_MAX, "its pods carry it as a label"),)
