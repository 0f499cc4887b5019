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
    """The weights to begin with."""

    path: Annotated[
        str,
        Field(min_length=1, max_length=512),
        matches(
            f"^(builtin:{_NAME}|/.+|{_NAME}(/{_NAME})?)$",
            "must be builtin:<name>, an absolute folder such as /models/mine, or a Hugging Face id "
            "such as org/model",
        ),
    ]
    """A builtin (builtin:reverse-tiny), a folder in the images or volumes, a Hugging Face id."""


class DataSpec(Model):
    """The prompts."""

    prompts: Annotated[
        str,
        Field(min_length=1, max_length=512),
        matches(
            f"^(builtin:{_NAME}|/.+[.](jsonl|parquet)|{_NAME}(/{_NAME})?)$",
            "must be builtin:<name>, an absolute path that ends in .jsonl or .parquet, or a data "
            "set id such as org/prompts",
        ),
    ]
    """A builtin (builtin:reverse), a JSONL or Parquet file, a data set id."""
    seed: Annotated[int, Field(ge=0, le=2_147_483_647)] = 0
    """Order of the prompts and randomness of the builtin tasks."""


class RewardSpec(Model):
    """How a response is judged."""

    function: Annotated[
        str,
        Field(min_length=1, max_length=512),
        matches(
            "^([A-Za-z_][A-Za-z0-9_]*([.][A-Za-z_][A-Za-z0-9_]*)*:[A-Za-z_][A-Za-z0-9_]*"
            "|[a-z0-9]([-a-z0-9]*[a-z0-9])?)$",
            "must be module:callable, such as my_package.rewards:score, or the name of a verifier",
        ),
    ]
    """module:callable as the rollout's image can import it, or a verifier by name."""


class TrainEngineSpec(Model):
    """A training engine by name, with its own settings."""

    name: TrainEngineName = "fsdp2"
    """A builtin engine, or one that the image registers by entry point (a qualified name)."""
    config: EngineConfig
    """Settings that only this engine reads."""


class EmptyDir(Model):
    """A folder that lives as long as the pod."""

    size_limit: Annotated[str, Field(min_length=1, max_length=24)] | None = None
    """A quantity; the pod is evicted when it holds more."""
    medium: Literal["", "Memory"] | None = None
    """Memory keeps it in RAM."""


class PersistentVolumeClaim(Model):
    """A claim of the same namespace."""

    claim_name: Annotated[str, Field(min_length=1, max_length=253)]
    """Its name; trainer pods on several nodes need ReadWriteMany."""


class CheckpointVolume(Model):
    """Where checkpoints are kept: exactly one kind."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            message="must have exactly one of emptyDir and persistentVolumeClaim",
            cel="has(self.emptyDir) != has(self.persistentVolumeClaim)",
            holds=lambda v: (v.empty_dir is None) != (v.persistent_volume_claim is None),
        ),
    )

    empty_dir: EmptyDir | None = None
    """Survives a restart of the container, not of the pod."""
    persistent_volume_claim: PersistentVolumeClaim | None = None
    """Survives everything; shared by all trainer pods."""


class CheckpointSpec(Model):
    """How the trainer saves its state."""

    every_steps: Count = 20
    """A checkpoint every so many steps."""
    volume: CheckpointVolume
    """Mounted at /var/lib/rollcall/checkpoints."""


class TrainerSpec(Model):
    """A gang of trainer pods: all or nothing. Rank 0 is the coordinator."""

    replicas: Annotated[int, Field(ge=1, le=4096)] = 1
    """Number of trainer pods."""
    engine: TrainEngineSpec = nested(TrainEngineSpec)
    checkpoint: CheckpointSpec | None = None
    """Without it a trainer that restarts begins anew."""
    recover_from: Literal["Checkpoint", "Rollouts"] = "Checkpoint"
    """Where a restarted trainer takes its weights from. Rollouts: from a rollout's memory when it
    holds a newer version than the newest checkpoint; no step is lost, but the optimizer's state is
    the checkpoint's, or none."""
    template: PodTemplate
    """The pods. The container named `trainer`, or the only one, is the worker. A change takes
    effect when the pods are made again: suspend the job and resume it."""


class LossSpec(Model):
    """The policy loss and its off-policy correction."""

    type: Literal["decoupled", "tis", "grpo"] = "decoupled"
    """decoupled corrects for stale samples apart from the clip, tis by truncated importance
    sampling, grpo not at all."""
    clip: Ratio = "0.2"
    """Clip range of the policy ratio."""
    is_cap: Cap = "5"
    """Cap of the importance weight."""


class OptimizerSpec(Model):
    """The optimizer."""

    name: Literal["adamw"] = "adamw"
    """A builtin optimizer."""
    learning_rate: LearningRate = "1e-3"
    """A decimal string."""


class AlgorithmSpec(Model):
    """The asynchronous loop."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            message="must be 0 when deterministic is true: which of several versions draws a "
            "sample depends on timing",
            cel="!self.deterministic || self.maxStaleness == 0",
            holds=lambda a: not a.deterministic or a.max_staleness == 0,
            path=".maxStaleness",
        ),
    )

    name: Literal["grpo"] = "grpo"
    """Advantages relative to the other samples of the same prompt."""
    group_size: Annotated[int, Field(ge=2, le=1024)] = 16
    """Samples for each prompt; advantages are relative within the group, so two or more."""
    prompts_per_step: Annotated[int, Field(ge=1, le=65_536)] = 16
    """Prompts for each optimizer step."""
    max_steps: Count
    """The job succeeds after so many steps."""
    max_staleness: Annotated[int, Field(ge=0, le=1000)] = 2
    """How many weight versions a sample may lag behind."""
    max_concurrent_rollouts: Annotated[int, Field(ge=1, le=1_000_000)] = 64
    """How many prompts may be in flight."""
    partial_rollout: bool = True
    """Go on with half-done responses after new weights came, and on another rollout when theirs
    is lost."""
    partial_report_seconds: Count = 1
    """Rollouts hand the tokens of half-done responses to the trainer this often."""
    lease_seconds: Count = 120
    """A prompt is given to another rollout when nothing was heard of it for this long."""
    deterministic: bool = False
    """true makes runs repeatable, also after a restart: prompts in order, draws that depend on
    nothing but prompt and weights. Slower; for tests and debugging."""
    loss: LossSpec = nested(LossSpec)
    optimizer: OptimizerSpec = nested(OptimizerSpec)
