"""What a job trains and where: model, reward, trainer."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from rollcall_operator.api.rolloutpool import EngineConfig
from rollcall_operator.api.rules import Model, Rule
from rollcall_operator.api.scalars import (
    Amount,
    Count,
    Device,
    Folder,
    GroupName,
    ModelPath,
    Ratio,
    Seconds,
    Share,
    TrainEngineName,
    matches,
)
from rollcall_operator.api.template import PodTemplate
from rollcall_protocol.job_config import RewardStyle
from rollcall_protocol.pod_contract import MAX_PROCESSES


def nested(model: type[Model]) -> Any:
    """A field that is always there: the API server fills in the defaults inside."""
    return Field(default_factory=model, json_schema_extra={"default": {}})


class ModelSpec(Model):
    """The model to train."""

    path: ModelPath
    """Initial weights: a builtin (builtin:reverse-tiny), a directory in the containers, or a
    Hugging Face id."""


RewardName = Annotated[
    str,
    Field(min_length=1, max_length=512),
    matches(
        "^([A-Za-z_][A-Za-z0-9_]*([.][A-Za-z_][A-Za-z0-9_]*)*:[A-Za-z_][A-Za-z0-9_]*"
        "|[a-z0-9]([-.a-z0-9]*[a-z0-9])?)$",
        "must be module:callable, such as my_package.rewards:score, or the name of a builtin "
        "reward, such as exact-match",
    ),
]


def _settings_have_a_name(spec: "RewardSpec | RewardPartSpec") -> bool:
    return not spec.config or ":" not in (spec.function or "")


# Without CEL: it cannot see objects of unknown fields, as `config` is.
_SETTINGS = Rule(
    message="must be empty for module:callable, which takes no settings; read them in the module",
    holds=_settings_have_a_name,
    path=".config",
)


# Without CEL, too: the API server estimates that looking into the text costs too much.
_STYLE = Rule(
    message="must be rollcall unless function is module:callable",
    holds=lambda spec: spec.style == RewardStyle.ROLLCALL or ":" in (spec.function or ""),
    path=".style",
)


class RewardPartSpec(Model):
    """One part of a reward that is a weighted sum."""

    RULES: ClassVar[tuple[Rule, ...]] = (_SETTINGS, _STYLE)

    name: GroupName
    """Name of the part, in metrics and errors."""
    function: RewardName
    """As spec.reward.function."""
    weight: Amount = "1"
    """What the part's number is multiplied by; a decimal string."""
    config: EngineConfig
    """Settings of a builtin reward."""
    style: Literal["rollcall", "trl", "verl"] = "rollcall"
    """As spec.reward.style."""


def _names_differ(parts: list[RewardPartSpec]) -> bool:
    return len({part.name for part in parts}) == len(parts)


class RewardSpec(Model):
    """How responses are scored."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            message="must have exactly one of function and parts",
            cel="has(self.function) != has(self.parts)",
            holds=lambda v: (v.function is None) != (v.parts is None),
        ),
        _SETTINGS,
        Rule(
            message="must be empty with parts, each of which has settings of its own",
            holds=lambda v: v.parts is None or not v.config,
            path=".config",
        ),
        _STYLE,
    )

    function: RewardName | None = None
    """module:callable that the rollout containers can import, or the name of a builtin reward. It
    is called with prompt and response, and returns a number."""
    config: EngineConfig
    """Settings of a builtin reward."""
    style: Literal["rollcall", "trl", "verl"] = "rollcall"
    """How the function of module:callable is called. rollcall: with prompt and response. trl: as
    TRL's trainers call reward functions, with completions and columns. verl: as
    compute_score(data_source, solution_str, ground_truth, extra_info)."""
    parts: (
        Annotated[
            list[RewardPartSpec],
            Field(
                min_length=1,
                max_length=8,
                json_schema_extra={
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["name"],
                },
            ),
            Rule(message="each name may occur once only", holds=_names_differ),
        ]
        | None
    ) = None
    """In place of function: the reward is the sum of the parts, each times its weight."""
    concurrency: Annotated[int, Field(ge=1, le=64)] = 1
    """How many samples each rollout scores at once, each in a process of its own."""
    keep_special_tokens: bool = False
    """Whether the text of a response, as rewards see it, has the special tokens in it, such as tags
    that the tokenizer holds for special. The token that ended the response is always left out."""
    on_error: Literal["Reject", "Zero", "Fail"] = "Reject"
    """What happens to a sample for which the function raises, hangs, ends its process, or returns
    anything but a finite number within 1e6. Reject: the samples of its prompt are not trained on.
    Zero: its reward is 0. Fail: the job fails once a second rollout reports such a sample, or the
    first if there is one rollout; until then as with Reject."""
    max_error_share: Ratio = "0.1"
    """The job fails when more than this share of the recent samples (at least 20) has no usable
    reward, and not on one rollout alone; a decimal string. 1: never."""
    timeout_seconds: Annotated[int, Field(ge=1, le=3600)] = 30
    """Longest time of one call. A call that takes longer is ended with its process."""
    verify_share: Share = "0"
    """The share of samples that the trainer scores again with the same function, which its
    containers must be able to import; a decimal string. A rollout whose rewards differ three times
    is excluded and replaced. Only for a function that always gives the same number. 0: none."""


class TrainEngineSpec(Model):
    """A training engine by name, with its own settings."""

    name: TrainEngineName = "fsdp2"
    """A builtin engine, or one that the image registers by entry point (a qualified name)."""
    config: EngineConfig
    """Settings of the engine, such as precision or tensorParallel. Those of a builtin engine are
    checked at once, those of others when the pods start."""


class EmptyDir(Model):
    """A directory that is deleted with the pod."""

    size_limit: Annotated[str, Field(min_length=1, max_length=24)] | None = None
    """Largest size, as a quantity; the pod is evicted when it is exceeded."""
    medium: Literal["", "Memory"] | None = None
    """Memory: the directory is kept in memory (tmpfs)."""


class PersistentVolumeClaim(Model):
    """A PersistentVolumeClaim in the job's namespace."""

    claim_name: Annotated[str, Field(min_length=1, max_length=253)]
    """Name of the claim. Trainer pods on several nodes need access mode ReadWriteMany."""


class CheckpointVolume(Model):
    """Volume for checkpoints: exactly one of emptyDir and persistentVolumeClaim."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            message="must have exactly one of emptyDir and persistentVolumeClaim",
            cel="has(self.emptyDir) != has(self.persistentVolumeClaim)",
            holds=lambda v: (v.empty_dir is None) != (v.persistent_volume_claim is None),
        ),
    )

    empty_dir: EmptyDir | None = None
    """Checkpoints survive a restart of the container, but not the deletion of the pod."""
    persistent_volume_claim: PersistentVolumeClaim | None = None
    """Checkpoints survive the deletion of pods; the volume is shared by all trainer pods."""


class CheckpointSpec(Model):
    """How often and where the trainer saves its state."""

    every_steps: Count = 20
    """Number of optimizer steps between two checkpoints."""
    volume: CheckpointVolume
    """Volume for the checkpoints, mounted at /var/lib/rollcall/checkpoints."""
    other_data: Literal["Refuse", "Continue"] = "Refuse"
    """What happens when the data are others than the checkpoint's: other rows, or another seed,
    weight or rowsPerStep, so that its step and prompts count other rows. Refuse: the job ends with
    an error that names what differs. Continue: training goes on at its step, with the new data."""


class TrainerSpec(Model):
    """The trainer: a gang of pods that start and restart together. Rank 0 is the coordinator."""

    kind: Literal["Builtin", "External"] = "Builtin"
    """Builtin: Rollcall's own trainer. External: a program of your own, which calls
    rollcall.Trainer(); data, rewards and algorithm are its own matter."""
    start_timeout_seconds: Seconds = 600
    """Seconds that the program may take until it calls rollcall.Trainer(), before its container is
    restarted. It has an effect with kind: External alone."""
    replicas: Annotated[int, Field(ge=1, le=4096)] = 1
    """Number of trainer pods."""
    processes_per_pod: Annotated[int, Field(ge=1, le=MAX_PROCESSES)] | None = None
    """Number of processes in each pod; each is a rank with a device of its own. Unset: as many as
    the accelerators (such as nvidia.com/gpu) that the worker's container asks for, otherwise 1."""
    device: Device = "auto"
    """auto: the accelerators that the container sees; a CPU only if the container asks for no
    accelerator and its image supports none. cpu: the CPU."""
    engine: TrainEngineSpec = nested(TrainEngineSpec)
    checkpoint: CheckpointSpec | None = None
    """Checkpoints. Without them a restarted trainer begins at step 0."""
    recover_from: Literal["Checkpoint", "Rollouts"] = "Checkpoint"
    """Where a restarted trainer takes its weights from. Checkpoint: from the newest checkpoint.
    Rollouts: from a rollout's memory if that holds a newer version; no published step is lost, but
    the optimizer state is still that of the checkpoint, or new if there is none."""
    export_path: Folder | None = None
    """Directory to which the model is written after the last step, as Hugging Face's libraries load
    it; it must be on a volume of the trainer, and not exist."""
    template: PodTemplate
    """Template of the pods. The container named `trainer`, or the only one, is the worker; the
    operator adds its environment, ports, volumes, probes and security context, and with kind:
    Builtin its command. A change takes effect when the pods are recreated: suspend the job and
    resume it."""

    @property
    def external(self) -> bool:
        """Whether the trainer is a program of the user's own."""
        return self.kind == "External"
