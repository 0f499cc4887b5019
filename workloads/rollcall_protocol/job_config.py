"""Configuration of a job for its pods: one JSON value in the environment, set by the operator."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from rollcall_protocol.algorithm_settings import AlgorithmSettings
from rollcall_protocol.data_config import DataConfig
from rollcall_protocol.sampling_config import SamplingConfig
from rollcall_protocol.supervised_config import SupervisedConfig
from rollcall_protocol.wire.roster import DEFAULT_GROUP


@dataclass(frozen=True, slots=True)
class EngineRef:
    """A registered engine by name, with that engine's own settings."""

    name: str
    config: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CheckpointConfig:
    """Where and how often the trainer saves. `path` is a folder of a mounted volume.

    `other_data`: CONTINUE to go on with a checkpoint of other data than the job's.
    """

    every_steps: int
    path: str
    other_data: str = "Refuse"


CONTINUE = "Continue"


@dataclass(frozen=True, slots=True)
class OptimizerConfig:
    """A registered optimizer and its learning rate."""

    name: str
    learning_rate: float


@dataclass(frozen=True, slots=True)
class AlgorithmConfig:
    """The asynchronous loop; `max_staleness` counts weight versions, times are seconds.

    `name` is what the job calls the algorithm; `settings` say what it is. With `epochs` above 0 the
    trainer counts how many steps these passes over the prompts are; `max_steps` is 0 until then.
    """

    name: str
    group_size: int
    prompts_per_step: int
    max_steps: int
    max_staleness: int
    max_concurrent_rollouts: int
    partial_rollout: bool
    optimizer: OptimizerConfig
    partial_report: float = 1.0
    lease: float = 120.0
    deterministic: bool = False
    settings: AlgorithmSettings = field(default_factory=AlgorithmSettings)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    epochs: int = 0


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """A named sync group beside the default one, with an engine of its own."""

    name: str
    engine: EngineRef


@dataclass(frozen=True, slots=True)
class DeltaConfig:
    """Sending only the changed bytes of a version, if they are at most `max_share` of it.

    `threads` encode buckets in parallel, `block_bytes` are compared at a time.
    """

    max_share: float = 0.5
    threads: int = 2
    block_bytes: int = 2**20


@dataclass(frozen=True, slots=True)
class WeightSyncConfig:
    """Transport settings; times are seconds, sizes bytes. `enabled` off is for comparisons.

    `engine` and `config` are the default group's. `blocking` has training wait for each send;
    `staging` (Host, Device or Streamed) is where the copy that is sent lives; traces go to the
    folder `profile_path`, if one is given; without `delta` whole versions are sent. `dtype` (Auto,
    Float32 or BFloat16) is that of weights on their way; `verify` (Checksum or Digest) says by what
    receivers know them.
    """

    engine: str
    enabled: bool
    bucket_bytes: int
    trigger_parameter_sync_step: int
    pause_mode: str
    stage_timeout: float
    commit_timeout: float
    join_timeout: float
    every_rank_sends: bool = True
    config: dict[str, Any] = field(default_factory=dict)
    groups: tuple[GroupConfig, ...] = ()
    blocking: bool = False
    staging: str = "Host"
    profile_path: str = ""
    delta: DeltaConfig | None = None
    dtype: str = "Auto"
    verify: str = "Checksum"

    def all_groups(self) -> tuple[GroupConfig, ...]:
        """Every sync group, the default one first."""
        return (GroupConfig(DEFAULT_GROUP, EngineRef(self.engine, self.config)), *self.groups)


@dataclass(frozen=True, slots=True)
class MembershipConfig:
    """How the coordinator admits and excludes members; times are seconds."""

    settle: float
    ack_timeout: float
    min_rollouts: int
    heartbeat: float = 1.0
    suspect_after: float = 3.0


@dataclass(frozen=True, slots=True)
class CoordinatorConfig:
    """What the coordinator reads of its job: members and weights, nothing of data and rewards.

    Each of the `trainer_replicas` pods has `trainer_processes` ranks. `max_staleness` counts weight
    versions. `front`: pods of the job answer agents in the form of OpenAI's API.
    """

    namespace: str
    job: str
    uid: str
    weight_sync: WeightSyncConfig
    membership: MembershipConfig
    max_steps: int
    max_staleness: int
    trainer_replicas: int = 1
    trainer_processes: int = 1
    front: bool = False


@dataclass(frozen=True, slots=True)
class ReferenceConfig:
    """The model that a KL term keeps the policy near to; there is none without such a term.

    It is the job's own model as it was at the start, unless `model` names another one. Every
    `update_every` steps it takes the policy's weights; 0: it stays. `host` is the DNS name of pods
    of its own, which the trainer asks; empty: the trainer computes it.
    """

    model: str = ""
    update_every: int = 0
    host: str = ""


@dataclass(frozen=True, slots=True)
class ReferencePodConfig:
    """What only the reference's own pods read: device and accelerators as JobConfig's trainer's."""

    device: str = "auto"
    accelerators: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CriticConfig:
    """The model that values tokens; there is none without the baseline "critic".

    It starts from the job's own model, unless `model` names another one. In the first
    `warmup_steps` it alone is trained.
    """

    model: str = ""
    learning_rate: float = 1e-3
    warmup_steps: int = 0


@dataclass(frozen=True, slots=True)
class RewardModelConfig:
    """A model that scores samples: `weight` times its score is added to their reward."""

    model: str
    weight: float = 1.0


class RewardStyle(StrEnum):
    """How a reward function is called: as docs/how-to/own-task.md has it, or as TRL or verl do."""

    ROLLCALL = "rollcall"
    TRL = "trl"
    VERL = "verl"


@dataclass(frozen=True, slots=True)
class RewardPart:
    """A reward function, `module:callable` or a name, of which `weight` times is added.

    `config` are the settings of one that has a name, `style` is how one without is called.
    """

    name: str
    function: str
    weight: float = 1.0
    config: dict[str, Any] = field(default_factory=dict)
    style: RewardStyle = RewardStyle.ROLLCALL


@dataclass(frozen=True, slots=True)
class RewardScoringConfig:
    """How samples are scored: `config` and `style` of the reward function, or `parts` in its place.

    Each rollout scores `concurrency` samples at once. The text of a response has special tokens
    with `keep_special_tokens` alone.
    """

    config: dict[str, Any] = field(default_factory=dict)
    parts: tuple[RewardPart, ...] = ()
    concurrency: int = 1
    style: RewardStyle = RewardStyle.ROLLCALL
    keep_special_tokens: bool = False

    def __post_init__(self) -> None:
        """ValueError says what is wrong."""
        if self.concurrency < 1:
            raise ValueError("concurrency must be at least 1")


@dataclass(frozen=True, slots=True)
class EnvironmentConfig:
    """What answers a response between its turns: a class `module:class`, or functions as tools.

    `config` are the arguments of the class. A response has at most `max_turns` turns that are
    sampled; each call of the environment has `step_seconds` seconds.
    """

    function: str = ""
    tools: tuple[str, ...] = ()
    config: dict[str, Any] = field(default_factory=dict)
    max_turns: int = 8
    step_seconds: float = 30.0

    def __post_init__(self) -> None:
        """ValueError says what is wrong."""
        if bool(self.function) == bool(self.tools):
            raise ValueError("exactly one of function and tools must be given")
        if self.max_turns < 1:
            raise ValueError("maxTurns must be at least 1")
        if not self.step_seconds > 0:
            raise ValueError("stepSeconds must be above 0")

    @property
    def shown(self) -> str:
        """Its name in messages."""
        return self.function or ", ".join(self.tools)


@dataclass(frozen=True, slots=True)
class RewardErrorConfig:
    """What a sample is whose reward function gives no usable reward, within `timeout` seconds.

    `on_error`: Reject (its group is not trained on), Zero (its reward is 0) or Fail (the job ends).
    The job also ends when more than `max_share` of the recent samples are such. The trainer scores
    `verify_share` of the samples again.
    """

    on_error: str = "Reject"
    max_share: float = 0.1
    timeout: float = 30.0
    verify_share: float = 0.0

    def __post_init__(self) -> None:
        """ValueError says what is wrong."""
        if self.on_error not in ("Reject", "Zero", "Fail"):
            raise ValueError("onError must be Reject, Zero or Fail")
        if not 0 < self.max_share <= 1:
            raise ValueError("maxErrorShare must be above 0 and at most 1")
        if not 0 <= self.verify_share <= 1:
            raise ValueError("verifyShare must be from 0 to 1")
        if not self.timeout > 0:
            raise ValueError("timeoutSeconds must be above 0")


@dataclass(frozen=True, slots=True)
class HealthConfig:
    """When training ends, or warns, because its figures are wrong.

    It ends after `max_skipped_steps` steps in a row whose loss or gradient is not finite. It warns
    above `max_mismatch_kl` (k3, in nats a token) and `max_mismatch_ratio` between the probabilities
    that rollouts and trainer give to a token with the same weights; 0: never.
    """

    max_skipped_steps: int = 5
    max_mismatch_kl: float = 0.0
    max_mismatch_ratio: float = 0.0

    def __post_init__(self) -> None:
        """ValueError says what is wrong."""
        if self.max_skipped_steps < 1:
            raise ValueError("maxSkippedSteps must be at least 1")


@dataclass(frozen=True, slots=True)
class EvaluationConfig:
    """Every `every_steps` steps the rollouts answer the first `prompts` of `data`, `samples` times.

    `pass_at` are the k of pass@k; a sample passes with a reward of at least `pass_reward`.
    """

    every_steps: int
    data: DataConfig
    prompts: int = 64
    samples: int = 4
    pass_at: tuple[int, ...] = (1,)
    pass_reward: float = 1.0

    def __post_init__(self) -> None:
        """ValueError says what is wrong."""
        if min(self.every_steps, self.prompts, self.samples) < 1:
            raise ValueError("everySteps, prompts and samples must be at least 1")
        if not all(1 <= k <= self.samples for k in self.pass_at):
            raise ValueError("each k of passAt must be between 1 and samples")


@dataclass(frozen=True, slots=True)
class TrackingConfig:
    """Where the figures of each step go beside Prometheus and the log; "" is nowhere.

    `folder` gets TensorBoard's event files; `wandb_project` is a project of Weights & Biases, whose
    key the container's environment has.
    """

    folder: str = ""
    wandb_project: str = ""


@dataclass(frozen=True, slots=True)
class SampleRecordingConfig:
    """Which responses the trainer keeps for people to look at, by groups.

    A `share` of the groups of each step, and all of each step that `all_every_steps` divides (0:
    of none).
    """

    share: float = 0.05
    all_every_steps: int = 0

    def __post_init__(self) -> None:
        """ValueError says what is wrong."""
        if not 0 <= self.share <= 1:
            raise ValueError("share must be from 0 to 1")
        if self.all_every_steps < 0:
            raise ValueError("allEverySteps must be at least 0")


@dataclass(frozen=True, slots=True)
class JobConfig:
    """Settings that the trainer and its rollouts share.

    Each of the `trainer_replicas` pods has `trainer_processes` ranks. `trainer_device` is auto or
    cpu; `reward_function` is empty if the reward is a sum of parts, which `reward_scoring` has;
    `trainer_accelerators` are the numbers of accelerators that a trainer's container asks for,
    by resource name. After the last step the model is written to the folder `export_path`, unless
    that is empty. `tls`: the endpoints of coordinator and reference pods speak TLS. `front`: pods
    of the job answer agents in the form of OpenAI's API. `external`: the trainer is a program of
    the user's own; rollouts answer its requests, and it alone has data, rewards and steps
    (`algorithm.max_steps` is 0). `rollout_context`: the most tokens of prompt and response that all
    rollouts of the job's own pools take; 0: the model's context.
    """

    namespace: str
    job: str
    uid: str
    model: str
    data: DataConfig
    reward_function: str
    trainer_replicas: int
    trainer_engine: EngineRef
    checkpoint: CheckpointConfig | None
    algorithm: AlgorithmConfig
    weight_sync: WeightSyncConfig
    membership: MembershipConfig
    recover_from: str = "Checkpoint"
    export_path: str = ""
    supervised: SupervisedConfig | None = None
    reference: ReferenceConfig = field(default_factory=ReferenceConfig)
    critic: CriticConfig = field(default_factory=CriticConfig)
    reward_model: RewardModelConfig | None = None
    reward_scoring: RewardScoringConfig = field(default_factory=RewardScoringConfig)
    reward_errors: RewardErrorConfig = field(default_factory=RewardErrorConfig)
    environment: EnvironmentConfig | None = None
    health: HealthConfig = field(default_factory=HealthConfig)
    evaluation: EvaluationConfig | None = None
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    samples: SampleRecordingConfig = field(default_factory=SampleRecordingConfig)
    trainer_processes: int = 1
    trainer_device: str = "auto"
    trainer_accelerators: dict[str, int] = field(default_factory=dict)
    tls: bool = False
    front: bool = False
    external: bool = False
    rollout_context: int = 0

    def __post_init__(self) -> None:
        """ValueError says what is wrong."""
        if self.rollout_context < 0:
            raise ValueError("rollout_context must be at least 0")
        if self.external == bool(self.data.sources):
            raise ValueError("data needs a source, unless the trainer is external")

    @property
    def coordinator(self) -> CoordinatorConfig:
        """What the coordinator reads of it."""
        return CoordinatorConfig(
            namespace=self.namespace,
            job=self.job,
            uid=self.uid,
            weight_sync=self.weight_sync,
            membership=self.membership,
            max_steps=self.algorithm.max_steps,
            max_staleness=self.algorithm.max_staleness,
            trainer_replicas=self.trainer_replicas,
            trainer_processes=self.trainer_processes,
            front=self.front,
        )

    @property
    def trainer_ranks(self) -> int:
        """How many ranks the trainer has in all its pods."""
        return self.trainer_replicas * self.trainer_processes


AGENT_SETTINGS = frozenset({"concurrency"})
"""Keys of a pool's `engine.config` that the agent reads; the rest is the engine's own."""


@dataclass(frozen=True, slots=True)
class PoolConfig:
    """Settings of the rollouts of one pool; `accelerators` are those that a container asks for."""

    pool: str
    sync_group: str
    engine: EngineRef
    drain_timeout: float
    accelerators: dict[str, int] = field(default_factory=dict)
