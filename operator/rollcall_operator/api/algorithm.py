"""How a job trains: the asynchronous loop, and the algorithm by its name and settings."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from rollcall_operator.api.rules import Model, Rule
from rollcall_operator.api.scalars import (
    Amount,
    Cap,
    Count,
    LearningRate,
    Ratio,
    Share,
    Temperature,
)
from rollcall_operator.api.training import nested
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
    learning_rate: LearningRate = "1e-3"
    """Learning rate, as a decimal string."""


class AlgorithmSettingsSpec(Model):
    """What differs from the settings that the algorithm's name stands for."""

    baseline: Literal["group-mean", "leave-one-out", "critic", "none"] | None = None
    """What a sample's reward is compared with for its advantage. group-mean: the mean of the
    samples of its prompt. leave-one-out: the mean of the others of them. critic: a critic's values,
    by generalised advantage estimation. none: nothing."""
    normalisation: Literal["group-std", "batch", "none"] | None = None
    """group-std: advantages are divided by the standard deviation of their group. batch: those of a
    batch get mean 0 and standard deviation 1. none: neither."""
    discount: Share | None = None
    """Discount of later rewards, with a critic; a decimal string."""
    gae_lambda: Share | None = None
    """Lambda of generalised advantage estimation, with a critic; a decimal string."""
    objective: Literal["ppo", "gspo", "cispo", "policy-gradient"] | None = None
    """ppo: the ratio of each token is clipped. gspo: that of each sequence is. cispo: the clipped
    ratio is a constant weight of the log-probability. policy-gradient: there is no ratio."""
    clip_low: Share | None = None
    """The policy ratio is clipped below 1 minus this; a decimal string."""
    clip_high: Amount | None = None
    """The policy ratio is clipped above 1 plus this; a decimal string."""
    dual_clip: Amount | None = None
    """The loss of a sample with a negative advantage is at most so many times the advantage;
    objective ppo. 0: no bound."""
    ratio_base: Literal["proximal", "behaviour"] | None = None
    """Which policy the ratio is taken to. proximal: the one before the first update on a batch.
    behaviour: the one that sampled the token."""
    correction: Literal["truncated", "masked", "none"] | None = None
    """How importance weights correct for samples of an older policy. truncated: they are at most
    correctionCap. masked: tokens with weights outside of correctionFloor and correctionCap are left
    out. none: there are no weights."""
    correction_level: Literal["token", "sequence"] | None = None
    """Whether each token has its own importance weight, or each sequence has one."""
    correction_cap: Cap | None = None
    """Upper limit of importance weights; a decimal string."""
    correction_floor: Share | None = None
    """Lower limit of importance weights, with correction masked; a decimal string."""
    off_policy: Literal["drop", "wait"] | None = None
    """What happens to samples that would become older than maxStaleness. drop: they are left out.
    wait: training waits until they have been trained on."""
    kl_coefficient: Amount | None = None
    """Weight of the divergence from the reference model; above 0 there is one. A decimal string."""
    kl_estimator: Literal["k1", "k2", "k3"] | None = None
    """Estimator of the divergence from the reference model."""
    kl_term: Literal["loss", "reward"] | None = None
    """Whether the divergence is added to the loss, or subtracted from each token's reward."""
    entropy_coefficient: Amount | None = None
    """Weight of the entropy bonus; a decimal string."""
    aggregation: Literal["token-mean", "sequence-mean", "sequence-sum"] | None = None
    """How losses of tokens become the loss of a batch. token-mean: their mean. sequence-mean: the
    mean of the means of sequences. sequence-sum: the mean of the sums of sequences, divided by
    aggregationLength."""
    aggregation_length: Count | None = None
    """Constant by which sequence-sum divides."""
    dynamic_sampling: bool | None = None
    """true: groups whose samples have all the same reward are replaced by other prompts."""
    dynamic_sampling_limit: Annotated[int, Field(ge=1, le=1000)] | None = None
    """Groups that dynamicSampling may leave out for each prompt of a batch."""
    overlong_limit: Annotated[int, Field(ge=0, le=10_000_000)] | None = None
    """Tokens of a response at which it loses the whole overlongPenalty. 0: there is none."""
    overlong_buffer: Annotated[int, Field(ge=0, le=10_000_000)] | None = None
    """Tokens before overlongLimit from which on the penalty grows."""
    overlong_penalty: Amount | None = None
    """Reward that an overlong response loses; a decimal string."""
    value_clip: Amount | None = None
    """How far the updates on a batch move a critic's value; a decimal string. 0: no bound."""


class SamplingSpec(Model):
    """How rollouts sample a response."""

    max_tokens: Annotated[int, Field(ge=1, le=MAX_RESPONSE_TOKENS)] | None = None
    """Number of tokens at which a response ends. Unset: the inference engine's own default."""
    temperature: Temperature = "1.0"
    """The logits are divided by it, in rollouts and in the trainer; a decimal string."""
    top_p: Ratio = "1.0"
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
    )

    name: Literal["grpo", "dr-grpo", "rloo", "reinforce++", "ppo", "gspo", "cispo", "dapo"] = "grpo"
    """Algorithm, by the name of its paper; it stands for settings."""
    settings: AlgorithmSettingsSpec = nested(AlgorithmSettingsSpec)
    sampling: SamplingSpec = nested(SamplingSpec)
    group_size: Annotated[int, Field(ge=1, le=1024)] = 16
    """Number of samples generated for each prompt; baselines of a group need 2 or more."""
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
    optimizer: OptimizerSpec = nested(OptimizerSpec)
