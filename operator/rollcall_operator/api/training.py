"""What a job trains and how: model, data, reward, trainer, algorithm."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from rollcall_operator.api.rolloutpool import EngineConfig
from rollcall_operator.api.rules import Model, Rule
from rollcall_operator.api.scalars import (
    Cap,
    Count,
    LearningRate,
    Ratio,
    TrainEngineName,
    matches,
)
from rollcall_operator.api.template import PodTemplate

_NAME = "[A-Za-z0-9][-A-Za-z0-9._]*"


def nested(model: type[Model]) -> Any:
    """A field that is always there: the API server fills in the defaults inside."""
    return Field(default_factory=model, json_schema_extra={"default": {}})


class ModelSpec(Model):
    """The model to train."""

    path: Annotated[
        str,
        Field(min_length=1, max_length=512),
        matches(
            f"^(builtin:{_NAME}|/.+|{_NAME}(/{_NAME})?)$",
            "must be builtin:<name>, an absolute path such as /models/mine, or a Hugging Face id "
            "such as org/model",
        ),
    ]
    """Initial weights: a builtin (builtin:reverse-tiny), a directory in the containers, or a
    Hugging Face id."""


class DataSpec(Model):
    """The prompts to train on."""

    prompts: Annotated[
        str,
        Field(min_length=1, max_length=512),
        matches(
            f"^(builtin:{_NAME}|/.+[.](jsonl|parquet)|{_NAME}(/{_NAME})?)$",
            "must be builtin:<name>, an absolute path that ends in .jsonl or .parquet, or a data "
            "set id such as org/prompts",
        ),
    ]
    """A builtin (builtin:reverse), the path of a JSONL or Parquet file, or a Hugging Face data
    set id."""
    seed: Annotated[int, Field(ge=0, le=2_147_483_647)] = 0
    """Seed for the order of the prompts and the builtin tasks."""


class RewardSpec(Model):
    """How responses are scored."""

    function: Annotated[
        str,
        Field(min_length=1, max_length=512),
        matches(
            "^([A-Za-z_][A-Za-z0-9_]*([.][A-Za-z_][A-Za-z0-9_]*)*:[A-Za-z_][A-Za-z0-9_]*"
            "|[a-z0-9]([-a-z0-9]*[a-z0-9])?)$",
            "must be module:callable, such as my_package.rewards:score, or the name of a verifier",
        ),
    ]
    """module:callable that the rollout containers can import, or the name of a builtin verifier. It
    is called with prompt tokens and response tokens, and returns a number."""


class TrainEngineSpec(Model):
    """A training engine by name, with its own settings."""

    name: TrainEngineName = "fsdp2"
    """A builtin engine, or one that the image registers by entry point (a qualified name)."""
    config: EngineConfig
    """Settings that only this engine reads."""


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


class TrainerSpec(Model):
    """The trainer: a gang of pods that start and restart together. Rank 0 is the coordinator."""

    replicas: Annotated[int, Field(ge=1, le=4096)] = 1
    """Number of trainer pods."""
    engine: TrainEngineSpec = nested(TrainEngineSpec)
    checkpoint: CheckpointSpec | None = None
    """Checkpoints. Without them a restarted trainer begins at step 0."""
    recover_from: Literal["Checkpoint", "Rollouts"] = "Checkpoint"
    """Where a restarted trainer takes its weights from. Checkpoint: from the newest checkpoint.
    Rollouts: from a rollout's memory if that holds a newer version; no published step is lost, but
    the optimizer state is still that of the checkpoint, or new if there is none."""
    template: PodTemplate
    """Template of the pods. The container named `trainer`, or the only one, is the worker; the
    operator adds its environment, ports, volumes, probes and security context. A change takes
    effect when the pods are recreated: suspend the job and resume it."""


class LossSpec(Model):
    """The policy loss and its off-policy correction."""

    type: Literal["decoupled", "tis", "grpo"] = "decoupled"
    """decoupled: corrects for stale samples with importance weights separate from the clipped
    ratio. tis: truncated importance sampling. grpo: no correction."""
    clip: Ratio = "0.2"
    """Clip range of the policy ratio."""
    is_cap: Cap = "5"
    """Upper limit of the importance weight."""


class OptimizerSpec(Model):
    """The optimizer."""

    name: Literal["adamw"] = "adamw"
    """Name of the optimizer."""
    learning_rate: LearningRate = "1e-3"
    """Learning rate, as a decimal string."""


class AlgorithmSpec(Model):
    """The training algorithm: asynchronous reinforcement learning with bounded staleness."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            message="must be 0 when deterministic is true: which of several versions generates a "
            "sample depends on timing",
            cel="!self.deterministic || self.maxStaleness == 0",
            holds=lambda a: not a.deterministic or a.max_staleness == 0,
            path=".maxStaleness",
        ),
    )

    name: Literal["grpo"] = "grpo"
    """grpo: the advantage of a sample is relative to the other samples of the same prompt."""
    group_size: Annotated[int, Field(ge=2, le=1024)] = 16
    """Number of samples generated for each prompt."""
    prompts_per_step: Annotated[int, Field(ge=1, le=65_536)] = 16
    """Number of prompts for each optimizer step."""
    max_steps: Count
    """Number of optimizer steps after which the job succeeds."""
    max_staleness: Annotated[int, Field(ge=0, le=1000)] = 2
    """Number of weight versions that a sample may lag behind; older samples are dropped."""
    max_concurrent_rollouts: Annotated[int, Field(ge=1, le=1_000_000)] = 64
    """Highest number of prompts leased to rollouts at a time."""
    partial_rollout: bool = True
    """true: unfinished responses are continued after a weight update, and on another rollout when
    theirs is lost."""
    partial_report_seconds: Count = 1
    """Seconds between two reports of a rollout about the tokens of its unfinished responses."""
    lease_seconds: Count = 120
    """Seconds without a report after which a prompt is leased to another rollout."""
    deterministic: bool = False
    """true: the same spec gives the same losses, also after restarts: prompts are used in order,
    and sampling depends only on prompt and weights. Slower; for tests and debugging."""
    loss: LossSpec = nested(LossSpec)
    optimizer: OptimizerSpec = nested(OptimizerSpec)
