"""RLJob: one reinforcement-learning run with its trainer and its rollouts."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from rollcall_operator.api.labels import GROUP_DEFAULT
from rollcall_operator.api.rolloutpool import EngineConfig, RolloutBase
from rollcall_operator.api.rules import Model, Rule
from rollcall_operator.api.scalars import (
    JOB_NAME_MAX,
    BucketSize,
    Count,
    Folder,
    GroupName,
    LongSeconds,
    Milliseconds,
    Ratio,
    RolloutName,
    Seconds,
    SyncEngineName,
    named,
)
from rollcall_operator.api.training import (
    AlgorithmSpec,
    DataSpec,
    ModelSpec,
    RewardSpec,
    TrainerSpec,
    nested,
)


class RolloutSpec(RolloutBase):
    """Rollouts that the job owns; each entry becomes a RolloutPool."""

    name: RolloutName
    """Its RolloutPool is named <job>-<name>."""


class DeltaSpec(Model):
    """Sending only what has changed."""

    enabled: bool = False
    """true compares each version with the one before it and sends the bytes that differ, while all
    rollouts serve that one."""
    max_share: Ratio = "0.5"
    """Everything is sent when what differs, as it travels, is a larger share of it."""
    threads: Annotated[int, Field(ge=1, le=64)] = 2
    """How many threads of trainer and rollouts work on buckets side by side."""
    block_size: BucketSize = "1Mi"
    """So many bytes are compared at a time; they should fit into a core's cache."""


class ProfileSpec(Model):
    """Traces of weight sync, for chrome://tracing or Perfetto."""

    enabled: bool = False
    """true has each process of trainer and rollouts write one file."""
    path: Folder = "/var/lib/rollcall/state/profile"
    """The folder in the pods. The default is in the pod's own volume and goes with it."""


class SyncGroupSpec(Model):
    """A sync group beside the default one, with a transport of its own."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            message=f"must not be {GROUP_DEFAULT}: that group's engine is spec.weightSync.engine; "
            "choose another name",
            cel=f"self.name != '{GROUP_DEFAULT}'",
            holds=lambda group: group.name != GROUP_DEFAULT,
            path=".name",
        ),
    )

    name: GroupName
    """What a pool's syncGroup names."""
    engine: SyncEngineName = "auto"
    """A builtin engine, or one that the image registers by entry point (a qualified name)."""
    config: EngineConfig
    """Settings of this group's engine."""


def _unique_groups(groups: list[SyncGroupSpec]) -> bool:
    return len({group.name for group in groups}) == len(groups)


class WeightSyncSpec(Model):
    """How new weights reach the rollouts."""

    engine: SyncEngineName = "auto"
    """auto takes the best that the pods can run."""
    config: EngineConfig
    """Settings of the engine, such as operationTimeout or interface. The pods check them."""
    groups: Annotated[
        list[SyncGroupSpec],
        Field(
            default_factory=list,
            max_length=7,
            json_schema_extra={
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["name"],
            },
        ),
        Rule(message="each name may occur once only", holds=_unique_groups),
    ]
    """More groups, for pools that need another engine; the trainer sends to each of them."""
    enabled: bool = True
    """false only to compare: rollouts then keep their first weights."""
    bucket_size: BucketSize = "64Mi"
    """Weights travel in buckets of this size."""
    trigger_parameter_sync_step: Count = 1
    """Publish weights every so many steps."""
    pause_mode: Literal["Abort", "Keep", "Wait"] = "Keep"
    """What happens to running requests while weights are applied."""
    stage_timeout_seconds: Seconds = 30
    """How long a rollout may take to receive new weights."""
    commit_timeout_seconds: Seconds = 10
    """How long a rollout may take to serve them."""
    join_timeout_seconds: Seconds = 10
    """How long forming the communication group may take."""
    every_rank_sends: bool = True
    """true: each trainer rank sends its shards. false: rank 0 gathers and sends all."""
    blocking: bool = False
    """true only to compare: training waits until the rollouts have the weights."""
    staging: Literal["Host", "Device", "Streamed"] = "Host"
    """Where the copy lives that is sent while training goes on. Host: host memory. Device: device
    memory, which is faster and takes at least twice as much of it as the weights, at rollouts too;
    engines that cannot send from there get a copy in host memory. Streamed: one copy in host
    memory, so the next version waits until this one has arrived."""
    delta: DeltaSpec = nested(DeltaSpec)
    profile: ProfileSpec = nested(ProfileSpec)


class MembershipSpec(Model):
    """How the sync group gathers and drops members."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            message="must be more than heartbeatMilliseconds; raise it, or lower the other",
            # An API server checks the default {} before it fills in what is below.
            cel="!has(self.suspectAfterMilliseconds) || !has(self.heartbeatMilliseconds) || "
            "self.suspectAfterMilliseconds > self.heartbeatMilliseconds",
            holds=lambda m: m.suspect_after_milliseconds > m.heartbeat_milliseconds,
            path=".suspectAfterMilliseconds",
        ),
    )

    settle_seconds: Annotated[int, Field(ge=0, le=3600)] = 1
    """Newcomers are gathered this long, so that a scale-up is one epoch."""
    ack_timeout_seconds: Seconds = 10
    """How long a member may take to answer before it is left out."""
    min_rollouts: Annotated[int, Field(ge=1, le=10_000)] = 1
    """Training waits while fewer rollouts are in sync."""
    heartbeat_milliseconds: Milliseconds = 1000
    """Rollouts give the coordinator a sign of life, and want one of it, this often."""
    suspect_after_milliseconds: Milliseconds = 3000
    """A rollout that gave no sign of life for this long, such as a hung one, is left out."""
    replace_after_seconds: Annotated[int, Field(ge=0, le=86_400)] = 60
    """A rollout's pod that was left out and did not come back for this long is deleted, so that
    another takes its place; 0 never deletes one."""


class FailureRule(Model):
    """What an exit code of the trainer means."""

    exit_codes: Annotated[
        list[Annotated[int, Field(ge=1, le=255)]],
        Field(min_length=1, max_length=32, json_schema_extra={"x-kubernetes-list-type": "set"}),
    ]
    """Codes from 1 to 255."""
    action: Literal["Fail", "Ignore"]
    """Fail: the job fails at once. Ignore: the restart does not count."""


class FailurePolicy(Model):
    """What to do when the trainer ends early. Rollouts are always replaced."""

    max_restarts: Annotated[int, Field(ge=0, le=1000)] = 3
    """The job fails when the trainer restarts more often than this."""
    stability_window_seconds: LongSeconds = 600
    """After running this long without a restart, counting begins at zero."""
    rules: Annotated[
        list[FailureRule],
        Field(
            default_factory=list,
            max_length=16,
            json_schema_extra={"x-kubernetes-list-type": "atomic"},
        ),
    ]
    """The first rule with the trainer's exit code decides; other codes count as restarts."""


def _unique_names(rollouts: list[RolloutSpec]) -> bool:
    return len({rollout.name for rollout in rollouts}) == len(rollouts)


_SUSPEND_FIRST = (
    "is immutable while the job is not suspended; set spec.suspend: true first, or make a new job"
)


def _frozen(field: str, *, optional: bool = False) -> Rule:
    same = f"self.{field} == oldSelf.{field}"
    if optional:
        same = f"has(self.{field}) == has(oldSelf.{field}) && (!has(self.{field}) || {same})"
    return Rule(message=_SUSPEND_FIRST, cel=f"oldSelf.suspend || ({same})", path=f".{field}")


def _frozen_for_good(field: str, why: str) -> Rule:
    return Rule(
        message=f"is immutable ({why}); make a new job",
        cel=f"self.{field} == oldSelf.{field}",
        path=f".{field}",
    )


def _checkpoints_are_published(spec: "RLJobSpec") -> bool:
    checkpoint = spec.trainer.checkpoint
    if not spec.algorithm.deterministic or checkpoint is None:
        return True
    return checkpoint.every_steps % spec.weight_sync.trigger_parameter_sync_step == 0


class RLJobSpec(Model):
    """Everything that is wanted of a job."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        _frozen_for_good("model", "checkpoints belong to it"),
        _frozen_for_good("trainer.engine.name", "checkpoints are in its format"),
        _frozen("data"),
        _frozen("reward"),
        _frozen("trainer.replicas"),
        _frozen("trainer.checkpoint", optional=True),
        _frozen("trainer.recoverFrom"),
        _frozen("algorithm"),
        _frozen("weightSync"),
        _frozen("membership"),
        Rule(
            message="must be a multiple of weightSync.triggerParameterSyncStep when "
            "algorithm.deterministic is true: a restart goes on from a published version",
            cel="!self.algorithm.deterministic || !has(self.trainer.checkpoint) || "
            "self.trainer.checkpoint.everySteps % self.weightSync.triggerParameterSyncStep == 0",
            holds=_checkpoints_are_published,
            path=".trainer.checkpoint.everySteps",
        ),
    )

    suspend: bool = False
    """true frees all pods and keeps the job; false goes on from the last checkpoint."""
    model: ModelSpec
    data: DataSpec
    reward: RewardSpec
    trainer: TrainerSpec
    rollouts: Annotated[
        list[RolloutSpec],
        Field(
            min_length=1,
            max_length=32,
            json_schema_extra={
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["name"],
            },
        ),
        Rule(message="each name may occur once only", holds=_unique_names),
    ]
    """Pools of rollouts that the job owns. More may be lent: apply a RolloutPool."""
    algorithm: AlgorithmSpec
    weight_sync: WeightSyncSpec = nested(WeightSyncSpec)
    membership: MembershipSpec = nested(MembershipSpec)
    failure_policy: FailurePolicy = nested(FailurePolicy)
    clean_pod_policy: Literal["All", "None"] = "All"
    """All frees the pods of a finished job; None leaves them running for a look."""
    active_deadline_seconds: LongSeconds | None = None
    """The job fails when it is not done after this long (time suspended does not count)."""
    ttl_seconds_after_finished: Annotated[int, Field(ge=0, le=31_536_000)] | None = None
    """The job is deleted this long after it finished; without it it stays."""


JOB_RULES = (named(JOB_NAME_MAX, "its pods are named after it"),)
