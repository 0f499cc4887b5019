"""How a job trains: the asynchronous loop, and the algorithm by its name and settings."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from rollcall_operator.api.declared_settings import changes_of
from rollcall_operator.api.rules import Model, Rule
from rollcall_operator.api.scalars import (
    Count,
    LearningRate,
    Temperature,
    TopP,
)
from rollcall_operator.api.training import nested
from rollcall_protocol.algorithm_settings import AlgorithmSettings
from rollcall_protocol.sampling_config import (
    MAX_COLUMN_LENGTH,
    MAX_RESPONSE_TOKENS,
    MAX_STOP_LENGTH,
    MAX_STOP_TOKENS,
    MAX_STOPS,
    MAX_TOKEN_ID,
    MAX_TOP_K,
)


class OptimizerSpec(Model):
    """The optimizer."""

    name: Literal["adamw"] = "adamw"
    """Name of the optimizer."""
    learning_rate: LearningRate | None = None
    """Learning rate, as a decimal string. Its schedule is a setting of the training engine. Unset:
    1e-6, and 1e-3 for a model whose path begins with builtin:."""


class AlgorithmSettingsSpec(changes_of(AlgorithmSettings)):  # type: ignore[misc]
    """What differs from the settings that the algorithm's name stands for."""


class SamplingSpec(Model):
    """How rollouts sample a response."""

    max_tokens: Annotated[int, Field(ge=1, le=MAX_RESPONSE_TOKENS)] | None = None
    """Number of tokens at which a response ends. Unset: the inference engine's own default."""
    temperature: Temperature = "1.0"
    """The logits are divided by it, in rollouts and in the trainer; a decimal string."""
    top_p: TopP = "1.0"
    """Only the likeliest tokens with this total probability are sampled; a decimal string."""
    top_k: Annotated[int, Field(ge=0, le=MAX_TOP_K)] = 0
    """Only this number of the likeliest tokens is sampled. 0: all."""
    stop: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=MAX_STOP_LENGTH)]],
        Field(
            default_factory=list,
            max_length=MAX_STOPS,
            json_schema_extra={"x-kubernetes-list-type": "atomic"},
        ),
    ]
    """Strings; a response ends after the token that completes one."""
    stop_token_ids: Annotated[
        list[Annotated[int, Field(ge=0, le=MAX_TOKEN_ID)]],
        Field(
            default_factory=list,
            max_length=MAX_STOP_TOKENS,
            json_schema_extra={"x-kubernetes-list-type": "atomic"},
        ),
    ]
    """Tokens that end a response, beside the model's own end-of-sequence tokens."""
    column: Annotated[str, Field(max_length=MAX_COLUMN_LENGTH)] = ""
    """Column of the data that may hold an object with maxTokens and stop for its prompt. Empty:
    none."""


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
        Rule(
            message="must have exactly one of maxSteps and epochs",
            cel="has(self.maxSteps) != has(self.epochs)",
            holds=lambda a: (a.max_steps is None) != (a.epochs is None),
        ),
    )

    name: Literal["grpo", "dr-grpo", "rloo", "reinforce++", "ppo", "gspo", "cispo", "dapo"] = "grpo"
    """Algorithm, by the name of its paper; it stands for settings."""
    settings: AlgorithmSettingsSpec = nested(AlgorithmSettingsSpec)
    sampling: SamplingSpec = nested(SamplingSpec)
    group_size: Annotated[int, Field(ge=1, le=1024)] = 16
    """Number of samples generated for each prompt; baselines of a group need 2 or more."""
    prompts_per_step: Annotated[int, Field(ge=1, le=65_536)] = 16
    """Number of prompts for each optimizer step."""
    max_steps: Count | None = None
    """Number of optimizer steps after which the job succeeds."""
    epochs: Count | None = None
    """In place of maxSteps: number of passes over the prompts, each of promptsPerStep prompts a
    step. For prompts of files and data sets."""
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
    optimizer: OptimizerSpec = nested(OptimizerSpec)
