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
    """Settings of the engine. Those of servers are checked before a pod starts, others by pods."""


class DrainSpec(Model):
    """How a rollout stops when its pod is deleted or scaled down."""

    timeout_seconds: Seconds = 30
    """Seconds that a rollout may take to finish its prompts or return them to the trainer."""


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
    """Fields that an entry of a job's `rollouts` and a RolloutPool share."""

    RULES: ClassVar[tuple[Rule, ...]] = _BOUNDS

    replicas: Replicas = 1
    """Number of rollouts to run."""
    min_replicas: Replicas | None = None
    """Lowest number of replicas that the API server accepts, also from autoscalers."""
    max_replicas: Replicas | None = None
    """Highest number of replicas that the API server accepts, also from autoscalers."""
    engine: RolloutEngineSpec
    """The inference engine that generates samples."""
    sync_group: GroupName = GROUP_DEFAULT
    """Sync group over which the rollouts receive weights: `default`, or one of the job's
    weightSync.groups."""
    drain: DrainSpec = Field(default_factory=DrainSpec, json_schema_extra={"default": {}})
    template: PodTemplate
    """Template of the pods. The container named `rollout`, or the only one, is the worker; the
    operator adds its environment, ports, volumes, probes and security context."""


class JobRef(Model):
    """An RLJob of the same namespace."""

    name: JobName
    """Name of the RLJob."""


class RolloutPoolSpec(RolloutBase):
    """Desired state of the RolloutPool."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        *RolloutBase.RULES,
        Rule(
            message="is immutable; delete the pool and apply it again for another job",
            cel="self.jobRef == oldSelf.jobRef",
            path=".jobRef",
            allows=lambda before, now: before.job_ref == now.job_ref,
        ),
    )

    job_ref: JobRef
    """The RLJob that the rollouts generate samples for."""


POOL_RULES = (named(POOL_NAME_MAX, "its pods carry it as a label"),)
