"""Settings of policy training: which advantage, objective and corrections make an algorithm.

A preset is nothing but settings under the name that the literature gives them, so any of them can
be changed: GRPO with leave-one-out baselines is one more setting, not another program. The
functions behind the settings, with their papers, are in `rollcall_runtime.train.algorithms`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any

from rollcall_protocol.setting_ranges import OneOf, Range, check_ranges

SHARE = Range(0, 1)
AMOUNT = Range(0, 1000)
CAP = Range(1, 1000)


@dataclass(frozen=True, slots=True)
class AlgorithmSettings:
    """The defaults are those of asynchronous GRPO without a KL term.

    `spec.algorithm.settings` is made from these fields, with their ranges and docstrings; floats
    are decimal strings there.
    """

    baseline: Annotated[str, OneOf("group-mean", "leave-one-out", "critic", "none")] = "group-mean"
    """What a sample's reward is compared with for its advantage. group-mean: the mean of the
    samples of its prompt. leave-one-out: the mean of the others of them. critic: a critic's values,
    by generalised advantage estimation. none: nothing."""
    normalisation: Annotated[str, OneOf("group-std", "batch", "none")] = "group-std"
    """group-std: advantages are divided by the standard deviation of their group. batch: those of a
    batch get mean 0 and standard deviation 1. none: neither."""
    discount: Annotated[float, SHARE] = 1.0
    """Discount of later rewards, with a critic; a decimal string."""
    gae_lambda: Annotated[float, SHARE] = 0.95
    """Lambda of generalised advantage estimation, with a critic; a decimal string."""
    objective: Annotated[str, OneOf("ppo", "gspo", "cispo", "policy-gradient")] = "ppo"
    """ppo: the ratio of each token is clipped. gspo: that of each sequence is. cispo: the clipped
    ratio is a constant weight of the log-probability. policy-gradient: there is no ratio."""
    clip_low: Annotated[float, SHARE] = 0.2
    """The policy ratio is clipped below 1 minus this; a decimal string."""
    clip_high: Annotated[float, AMOUNT] = 0.2
    """The policy ratio is clipped above 1 plus this; a decimal string."""
    dual_clip: Annotated[float, AMOUNT] = 0.0
    """The loss of a sample with a negative advantage is at most so many times the advantage;
    objective ppo. 0: no bound."""
    ratio_base: Annotated[str, OneOf("proximal", "behaviour")] = "proximal"
    """Which policy the ratio is taken to. proximal: the one before the first update on a batch.
    behaviour: the one that sampled the token."""
    correction: Annotated[str, OneOf("truncated", "masked", "none")] = "truncated"
    """How importance weights correct for samples of an older policy. truncated: they are at most
    correctionCap. masked: tokens with weights outside of correctionFloor and correctionCap are left
    out. none: there are no weights."""
    correction_level: Annotated[str, OneOf("token", "sequence")] = "token"
    """Whether each token has its own importance weight, or each sequence has one."""
    correction_cap: Annotated[float, CAP] = 5.0
    """Upper limit of importance weights; a decimal string."""
    correction_floor: Annotated[float, SHARE] = 0.0
    """Lower limit of importance weights, with correction masked; a decimal string."""
    off_policy: Annotated[str, OneOf("drop", "wait")] = "drop"
    """What happens to samples that would become older than maxStaleness. drop: they are left out.
    wait: training waits until they have been trained on."""
    kl_coefficient: Annotated[float, AMOUNT] = 0.0
    """Weight of the divergence from the reference model; above 0 there is one. A decimal string."""
    kl_estimator: Annotated[str, OneOf("k1", "k2", "k3")] = "k3"
    """Estimator of the divergence from the reference model."""
    kl_term: Annotated[str, OneOf("loss", "reward")] = "loss"
    """Whether the divergence is added to the loss, or subtracted from each token's reward."""
    entropy_coefficient: Annotated[float, AMOUNT] = 0.0
    """Weight of the entropy bonus; a decimal string."""
    aggregation: Annotated[str, OneOf("token-mean", "sequence-mean", "sequence-sum")] = "token-mean"
    """How losses of tokens become the loss of a batch. token-mean: their mean. sequence-mean: the
    mean of the means of sequences. sequence-sum: the mean of the sums of sequences, divided by
    aggregationLength."""
    aggregation_length: Annotated[int, Range(1, 1_000_000)] = 1
    """Constant by which sequence-sum divides."""
    dynamic_sampling: bool = False
    """true: groups whose samples have all the same reward are replaced by other prompts."""
    dynamic_sampling_limit: Annotated[int, Range(1, 1000)] = 4
    """Groups that dynamicSampling may leave out for each prompt of a batch."""
    overlong_limit: Annotated[int, Range(0, 10_000_000)] = 0
    """Tokens of a response at which it loses the whole overlongPenalty. 0: there is none."""
    overlong_buffer: Annotated[int, Range(0, 10_000_000)] = 0
    """Tokens before overlongLimit from which on the penalty grows."""
    overlong_penalty: Annotated[float, AMOUNT] = 1.0
    """Reward that an overlong response loses; a decimal string."""
    value_clip: Annotated[float, AMOUNT] = 0.2
    """How far the updates on a batch move a critic's value; a decimal string. 0: no bound."""

    def __post_init__(self) -> None:
        """ValueError says which setting is out of its range, by the name that a user gives it."""
        check_ranges(self)
        self._check_combinations()

    def _check_combinations(self) -> None:
        if self.baseline in {"critic", "none"} and self.normalisation == "group-std":
            raise ValueError(
                f"normalisation must not be group-std when baseline is {self.baseline}"
            )
        if self.objective == "ppo" and not 0 < self.clip_low < 1:
            raise ValueError("clipLow must be above 0 and below 1 when objective is ppo")
        if self.dual_clip and not (self.dual_clip > 1 and self.objective == "ppo"):
            raise ValueError("dualClip must be 0, or above 1 with objective ppo")
        weighed = self.objective == "policy-gradient" or self.ratio_base == "proximal"
        if not weighed and self.correction != "none":
            raise ValueError("correction must be none when ratioBase is behaviour: the ratio is it")
        if self.overlong_limit and not 0 < self.overlong_buffer <= self.overlong_limit:
            raise ValueError("overlongBuffer must be between 1 and overlongLimit")

    @property
    def needs_reference(self) -> bool:
        """Whether log-probabilities of a reference model are read."""
        return self.kl_coefficient > 0

    @property
    def needs_critic(self) -> bool:
        """Whether values of a critic are read."""
        return self.baseline == "critic"

    @property
    def compares_in_groups(self) -> bool:
        """Whether a sample's advantage needs other samples of the same prompt."""
        return self.baseline in {"group-mean", "leave-one-out"} or self.normalisation == "group-std"

    @property
    def needs_proximal(self) -> bool:
        """Whether the log-probabilities before a batch's first update are read."""
        return self.objective != "policy-gradient" and self.ratio_base == "proximal"


# What each algorithm changes of the defaults. None has a KL term, as a reference is a second model.
PRESETS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "grpo": {},
        "dr-grpo": {
            "normalisation": "none",
            "aggregation": "sequence-sum",
            "aggregation_length": 1024,
        },
        "rloo": {
            "baseline": "leave-one-out",
            "normalisation": "none",
            "objective": "policy-gradient",
            "aggregation": "sequence-sum",
        },
        "reinforce++": {"baseline": "none", "normalisation": "batch", "kl_term": "reward"},
        "ppo": {"baseline": "critic", "normalisation": "batch", "kl_term": "reward"},
        "gspo": {
            "objective": "gspo",
            "clip_low": 3e-4,
            "clip_high": 4e-4,
            "correction_level": "sequence",
            "aggregation": "sequence-mean",
        },
        "cispo": {
            "objective": "cispo",
            "clip_low": 1.0,
            "clip_high": 4.0,
            "ratio_base": "behaviour",
            "correction": "none",
        },
        "dapo": {"clip_high": 0.28, "dynamic_sampling": True},
    }
)


def preset(name: str, **changes: Any) -> AlgorithmSettings:
    """The settings called `name` with some of them changed; ValueError for what cannot be."""
    if name not in PRESETS:
        raise ValueError(f"unknown algorithm {name!r}; known: {', '.join(PRESETS)}")
    return AlgorithmSettings(**{**PRESETS[name], **changes})
