"""RLJob: one reinforcement-learning run with its trainer and its rollouts."""

from operator import attrgetter
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field
from pydantic.alias_generators import to_snake

from rollcall_operator.api.algorithm import AlgorithmSpec
from rollcall_operator.api.data import DataSpec
from rollcall_operator.api.environment import EnvironmentSpec
from rollcall_operator.api.front import FrontSpec
from rollcall_operator.api.labels import GROUP_DEFAULT
from rollcall_operator.api.monitoring import (
    EvaluationSpec,
    HealthSpec,
    ObserveSpec,
    TrackingSpec,
)
from rollcall_operator.api.network_policy import NetworkPolicySpec
from rollcall_operator.api.roles import CriticSpec, ReferenceSpec, RewardModelSpec
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
from rollcall_operator.api.supervised import SupervisedSpec
from rollcall_operator.api.tls import TlsSpec
from rollcall_operator.api.training import (
    ModelSpec,
    RewardSpec,
    TrainerSpec,
    nested,
)


class RolloutSpec(RolloutBase):
    """A pool of rollouts that the job owns; each entry becomes a RolloutPool."""

    name: RolloutName
    """Name of the pool within the job: its RolloutPool is named <job>-<name>."""


class DeltaSpec(Model):
    """Delta sync: only the bytes that changed since the last version are sent."""

    enabled: bool = False
    """true: each version is compared with the one before it, and only the bytes that differ are
    sent, as long as all rollouts serve that one."""
    max_share: Ratio = "0.5"
    """The whole version is sent instead when the delta would be more than this share of its
    size."""
    threads: Annotated[int, Field(ge=1, le=64)] = 2
    """Number of threads that encode (trainer) and decode (rollouts) buckets in parallel."""
    block_size: BucketSize = "1Mi"
    """Number of bytes compared at a time; they should fit into the cache of a CPU core."""


class ProfileSpec(Model):
    """Traces of weight sync, for chrome://tracing or Perfetto."""

    enabled: bool = False
    """true: each trainer and rollout process writes one trace file."""
    path: Folder = "/var/lib/rollcall/state/profile"
    """Directory of the trace files in each pod. The default is deleted together with the pod."""


class SyncGroupSpec(Model):
    """A sync group in addition to the default one, with its own transport."""

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
    """Name that pools refer to in `syncGroup`."""
    engine: SyncEngineName = "auto"
    """A builtin engine, or one that the image registers by entry point (a qualified name)."""
    config: EngineConfig
    """Settings of this group's engine."""


def _unique_groups(groups: list[SyncGroupSpec]) -> bool:
    return len({group.name for group in groups}) == len(groups)


class WeightSyncSpec(Model):
    """How new weights are sent from the trainer to the rollouts."""

    engine: SyncEngineName = "auto"
    """Weight-sync engine; auto chooses nccl on CUDA, hccl on Ascend, gloo on CPUs."""
    config: EngineConfig
    """Settings of the engine, such as operationTimeout or interface. The pods validate them when
    they start."""
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
    """Additional sync groups, for pools that need another engine. The trainer sends to all
    groups."""
    enabled: bool = True
    """false: rollouts keep their initial weights. Only for experiments that compare with this."""
    bucket_size: BucketSize = "64Mi"
    """Size of the buckets in which weights are sent."""
    trigger_parameter_sync_step: Count = 1
    """Number of optimizer steps between two published weight versions."""
    pause_mode: Literal["Abort", "Keep", "Wait"] = "Keep"
    """What happens to running generation requests while new weights are applied. Abort: they are
    aborted and their prompts leased again. Keep: they continue with the new weights. Wait: the
    weights are applied once they have finished."""
    stage_timeout_seconds: Seconds = 30
    """Seconds that a rollout may take to receive a weight version; on a busy machine up to six
    times that."""
    commit_timeout_seconds: Seconds = 10
    """Seconds that a rollout may take to apply a received weight version; on a busy machine up to
    six times that."""
    join_timeout_seconds: Seconds = 10
    """Seconds that forming the communication group of a session may take; on a busy machine up to
    six times that."""
    every_rank_sends: bool = True
    """true: each trainer rank sends its own shards. false: rank 0 gathers the model and sends
    it."""
    blocking: bool = False
    """true: training waits until the rollouts have received each version. Only for experiments that
    compare with this."""
    staging: Literal["Host", "Device", "Streamed"] = "Host"
    """Where the snapshot of the weights is kept while it is sent and training goes on. Host: in
    host memory. Device: in device memory, which is faster and needs twice the size of the weights,
    on rollouts too; engines that cannot send from there get a copy in host memory. Streamed: one
    copy in host memory, so training waits until the rollouts have received it."""
    dtype: Literal["Auto", "Float32", "BFloat16"] = "Auto"
    """In what floats weights travel that the trainer keeps in float32. Auto: as they are, but in
    bfloat16 where the training engine computes in bf16, which halves the bytes and gives rollouts
    the numbers that the trainer computes with; as they are with trainer.recoverFrom: Rollouts,
    which takes weights back."""
    verify: Literal["Checksum", "Digest"] = "Checksum"
    """How a rollout knows that it received what the trainer sent. Checksum: by XXH3 checksums with
    a random seed, or by sums in the device's memory, which cost little beside the transfer. Digest:
    by BLAKE3 digests, for which other bytes cannot be made. What a rollout fetches from another
    rollout is always compared with digests, and so are all versions with engine store, with delta,
    with staging: Streamed and with trainer.recoverFrom: Rollouts."""
    delta: DeltaSpec = nested(DeltaSpec)
    profile: ProfileSpec = nested(ProfileSpec)


class MembershipSpec(Model):
    """How rollouts join the sync group, and when they are excluded or replaced."""

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
    """Seconds during which new rollouts are gathered, so that a scale-up is one epoch."""
    ack_timeout_seconds: Seconds = 10
    """Seconds that a member may take to acknowledge a step of forming a session before it is
    excluded; on a busy machine up to six times that."""
    min_rollouts: Annotated[int, Field(ge=1, le=10_000)] = 1
    """Training pauses while fewer rollouts than this serve current weights."""
    heartbeat_milliseconds: Milliseconds = 1000
    """Milliseconds between two heartbeats of a rollout and the coordinator, in both directions."""
    suspect_after_milliseconds: Milliseconds = 3000
    """A rollout that sends nothing for so many milliseconds is excluded from the session; on a busy
    machine for up to six times as many."""
    replace_after_seconds: Annotated[int, Field(ge=0, le=86_400)] = 60
    """The pod of a rollout that was excluded and has not come back for so many seconds is deleted,
    so that the Deployment replaces it. 0: never."""


class FailureRule(Model):
    """What happens when the trainer ends with one of these exit codes."""

    exit_codes: Annotated[
        list[Annotated[int, Field(ge=1, le=255)]],
        Field(min_length=1, max_length=32, json_schema_extra={"x-kubernetes-list-type": "set"}),
    ]
    """Exit codes from 1 to 255."""
    action: Literal["Fail", "Ignore"]
    """Fail: the job fails at once. Ignore: the restart does not count against maxRestarts."""


class FailurePolicy(Model):
    """What happens when the trainer exits with an error. Rollouts are always restarted, unless all
    of them reject their settings, or the reward's code, more than maxRestarts times before the
    first step: then the job fails.
    """

    max_restarts: Annotated[int, Field(ge=0, le=1000)] = 3
    """Number of trainer restarts after which the next one fails the job."""
    stability_window_seconds: LongSeconds = 600
    """Restarts are counted from 0 again after so many seconds without one."""
    rules: Annotated[
        list[FailureRule],
        Field(
            default_factory=list,
            max_length=16,
            json_schema_extra={"x-kubernetes-list-type": "atomic"},
        ),
    ]
    """The first rule that lists the exit code applies; exit codes without a rule count as
    restarts."""


def _unique_names(rollouts: list[RolloutSpec]) -> bool:
    return len({rollout.name for rollout in rollouts}) == len(rollouts)


_SUSPEND_FIRST = (
    "is immutable while the job is not suspended; set spec.suspend: true first, or create another "
    "RLJob"
)


def _at(spec: "RLJobSpec", field: str) -> Any:
    """The value of a field such as `trainer.processesPerPod`."""
    return attrgetter(".".join(map(to_snake, field.split("."))))(spec)


def _frozen(field: str, *, optional: bool = False) -> Rule:
    same = f"self.{field} == oldSelf.{field}"
    if optional:
        same = f"has(self.{field}) == has(oldSelf.{field}) && (!has(self.{field}) || {same})"
    return Rule(
        message=_SUSPEND_FIRST,
        cel=f"oldSelf.suspend || ({same})",
        path=f".{field}",
        allows=lambda before, now: before.suspend or _at(before, field) == _at(now, field),
    )


def _frozen_for_good(field: str, why: str) -> Rule:
    return Rule(
        message=f"is immutable ({why}); create another RLJob",
        cel=f"self.{field} == oldSelf.{field}",
        path=f".{field}",
        allows=lambda before, now: _at(before, field) == _at(now, field),
    )


def _checkpoints_are_published(spec: "RLJobSpec") -> bool:
    checkpoint = spec.trainer.checkpoint
    if spec.algorithm is None or not spec.algorithm.deterministic or checkpoint is None:
        return True
    return checkpoint.every_steps % spec.weight_sync.trigger_parameter_sync_step == 0


_EXTERNAL = "self.trainer.kind == 'External'"
_OF_BUILT_IN_TRAINERS = (
    "data",
    "reward",
    "environment",
    "algorithm",
    "supervised",
    "rewardModel",
    "evaluation",
    "trainer.checkpoint",
    "trainer.exportPath",
    "trainer.processesPerPod",
)
"""Fields that are unset unless they are given. Those with defaults are in
`plan.training_settings`."""
NOT_FOR_EXTERNAL = (
    "must not be given with trainer.kind: External: the trainer's own program takes care of this; "
    "remove it"
)


def _not_for_external(field: str) -> Rule:
    return Rule(
        message=NOT_FOR_EXTERNAL,
        cel=f"!({_EXTERNAL}) || !has(self.{field})",
        holds=lambda spec: not spec.trainer.external or _at(spec, field) is None,
        path=f".{field}",
    )


class RLJobSpec(Model):
    """Desired state of the RLJob."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        _frozen_for_good("model", "checkpoints hold its weights"),
        _frozen_for_good("trainer.engine.name", "checkpoints are in its format"),
        _frozen_for_good("trainer.kind", "the other kind needs another spec"),
        _frozen("data", optional=True),
        _frozen("reward", optional=True),
        _frozen("environment", optional=True),
        _frozen("trainer.replicas"),
        _frozen("trainer.processesPerPod", optional=True),
        _frozen("trainer.device"),
        _frozen("trainer.checkpoint", optional=True),
        _frozen("trainer.recoverFrom"),
        _frozen("reference.path", optional=True),
        _frozen("reference.updateEvery"),
        Rule(
            message="must not be added or removed while the job is not suspended; set "
            "spec.suspend: true first, or create another RLJob",
            cel="oldSelf.suspend || "
            "has(self.reference.template) == has(oldSelf.reference.template)",
            path=".reference.template",
            allows=lambda before, now: (
                before.suspend
                or (before.reference.template is None) == (now.reference.template is None)
            ),
        ),
        Rule(
            message="must not be removed, nor added while the job is not suspended; set "
            "spec.suspend: true before you add it, or create another RLJob",
            cel="has(self.front) == has(oldSelf.front) || (oldSelf.suspend && has(self.front))",
            path=".front",
            allows=lambda before, now: (
                (before.front is None) == (now.front is None)
                or (before.suspend and now.front is not None)
            ),
        ),
        Rule(
            message="must not be given with supervised, which has no rollouts; remove it",
            cel="!has(self.front) || !has(self.supervised)",
            holds=lambda spec: spec.front is None or spec.supervised is None,
            path=".front",
        ),
        _frozen("critic"),
        _frozen("rewardModel", optional=True),
        _frozen("health"),
        _frozen("evaluation", optional=True),
        _frozen("tracking"),
        _frozen("observe"),
        _frozen("algorithm", optional=True),
        _frozen("supervised", optional=True),
        _frozen("weightSync"),
        _frozen("membership"),
        _frozen("tls.enabled"),
        _frozen("tls.secretName", optional=True),
        *(_not_for_external(field) for field in _OF_BUILT_IN_TRAINERS),
        Rule(
            message="must have exactly one of algorithm (with rollouts and reward) and supervised",
            cel=f"{_EXTERNAL} || has(self.algorithm) != has(self.supervised)",
            holds=lambda spec: (
                spec.trainer.external or (spec.algorithm is None) != (spec.supervised is None)
            ),
        ),
        Rule(
            message="is required unless trainer.kind is External; add it",
            cel=f"{_EXTERNAL} || has(self.data)",
            holds=lambda spec: spec.trainer.external or spec.data is not None,
            path=".data",
        ),
        Rule(
            message="is required with algorithm, and must not be given with supervised",
            cel=f"{_EXTERNAL} || has(self.algorithm) == has(self.reward)",
            holds=lambda spec: (
                spec.trainer.external or (spec.algorithm is None) == (spec.reward is None)
            ),
            path=".reward",
        ),
        Rule(
            message="is required with algorithm and with trainer.kind: External, and must not be "
            "given with supervised",
            cel=f"(has(self.algorithm) || {_EXTERNAL}) == has(self.rollouts)",
            holds=lambda spec: (
                (spec.algorithm is not None or spec.trainer.external) == spec.has_rollouts
            ),
            path=".rollouts",
        ),
        Rule(
            message="must be a multiple of weightSync.triggerParameterSyncStep when "
            "algorithm.deterministic is true: a restart continues from a published version",
            cel="!has(self.algorithm) || !self.algorithm.deterministic || "
            "!has(self.trainer.checkpoint) || "
            "self.trainer.checkpoint.everySteps % self.weightSync.triggerParameterSyncStep == 0",
            holds=_checkpoints_are_published,
            path=".trainer.checkpoint.everySteps",
        ),
    )

    suspend: bool = False
    """true: all pods of the job are deleted. Set back to false, training resumes from the last
    checkpoint."""
    model: ModelSpec
    data: DataSpec | None = None
    reward: RewardSpec | None = None
    environment: EnvironmentSpec | None = None
    trainer: TrainerSpec
    rollouts: (
        Annotated[
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
        | None
    ) = None
    """Pools of rollouts that the job owns. To add rollouts while it runs, apply a RolloutPool."""
    algorithm: AlgorithmSpec | None = None
    supervised: SupervisedSpec | None = None
    reference: ReferenceSpec = nested(ReferenceSpec)
    front: FrontSpec | None = None
    critic: CriticSpec = nested(CriticSpec)
    reward_model: RewardModelSpec | None = None
    health: HealthSpec = nested(HealthSpec)
    evaluation: EvaluationSpec | None = None
    tracking: TrackingSpec = nested(TrackingSpec)
    observe: ObserveSpec = nested(ObserveSpec)
    weight_sync: WeightSyncSpec = nested(WeightSyncSpec)
    membership: MembershipSpec = nested(MembershipSpec)
    failure_policy: FailurePolicy = nested(FailurePolicy)
    network_policy: NetworkPolicySpec = nested(NetworkPolicySpec)
    tls: TlsSpec = nested(TlsSpec)
    clean_pod_policy: Literal["All", "None"] = "All"
    """What happens to the pods of a finished job. All: they are deleted. None: they keep running,
    for inspection."""
    active_deadline_seconds: LongSeconds | None = None
    """The job fails when it has not finished after so many seconds; time suspended does not
    count."""
    ttl_seconds_after_finished: Annotated[int, Field(ge=0, le=31_536_000)] | None = None
    """The job is deleted so many seconds after it finished. Unset: it is kept."""

    @property
    def has_rollouts(self) -> bool:
        """Whether the job has rollouts: a supervised one has none."""
        return self.rollouts is not None

    @property
    def max_steps(self) -> int:
        """Number of optimizer steps that the spec gives; 0 if only the trainer knows it."""
        if self.algorithm is not None:
            return self.algorithm.max_steps or 0
        return self.supervised.max_steps if self.supervised else 0


JOB_RULES = (named(JOB_NAME_MAX, "its pods are named after it"),)
