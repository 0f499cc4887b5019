"""Settings of policy training: which advantage, objective and corrections make an algorithm.

A preset is nothing but settings under the name that the literature gives them, so any of them can
be changed: GRPO with leave-one-out baselines is one more setting, not another program. The
functions behind the settings, with their papers, are in `rollcall_runtime.train.algorithms`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from rollcall_protocol.settings_reader import camel_case

BASELINES = ("group-mean", "leave-one-out", "critic", "none")
NORMALISATIONS = ("group-std", "batch", "none")
OBJECTIVES = ("ppo", "gspo", "cispo", "policy-gradient")
RATIO_BASES = ("proximal", "behaviour")
CORRECTIONS = ("truncated", "masked", "none")
LEVELS = ("token", "sequence")
KL_TERMS = ("loss", "reward")
KL_ESTIMATORS = ("k1", "k2", "k3")
AGGREGATIONS = ("token-mean", "sequence-mean", "sequence-sum")
OFF_POLICY = ("drop", "wait")


@dataclass(frozen=True, slots=True)
class AlgorithmSettings:
    """The defaults are those of asynchronous GRPO without a KL term.

    Advantage: a sample's reward less its `baseline`: the mean of its group (the samples of the same
    prompt), that of the others of its group, or nothing; with `critic` generalised advantages over
    tokens, with `discount` and `gae_lambda`. `normalisation` then divides by the standard deviation
    of the group, or makes mean and deviation of the whole batch 0 and 1.

    Objective: `ppo` clips the policy ratio to 1 - `clip_low` and 1 + `clip_high`, `gspo` clips the
    geometric mean of a sequence's ratios, `cispo` clips the ratio as a constant weight,
    `policy-gradient` has no ratio. `dual_clip` above 1 bounds the loss of a bad sample at so many
    times its advantage (0: no bound; ppo alone). The ratio is taken to the policy before the
    batch's first update (`ratio_base` proximal) or to the one that sampled (behaviour).

    Off-policy: `correction` weighs a token by the ratio of the ratio's base, or of the policy
    itself if there is none, to the policy that sampled it: `truncated` at `correction_cap`, or
    `masked`, which leaves out what lies above the cap or below `correction_floor`.
    `correction_level` sequence takes the product over a sequence. `off_policy`: samples older than
    the staleness bound are left out (drop), or training waits for those that would become too old
    (wait).

    Regularisation: with `kl_coefficient` above 0 a reference model is kept, and `kl_estimator` of
    the divergence from it is added to the `kl_term`: the loss, or each token's reward.
    `entropy_coefficient` adds an entropy bonus.

    Sums: `aggregation` divides by the tokens of the batch (token-mean), averages the means of
    sequences (sequence-mean), or divides the sums of sequences by the constant `aggregation_length`
    and their number (sequence-sum).

    Samples: `dynamic_sampling` leaves out groups whose rewards are all alike, at most
    `dynamic_sampling_limit` for each prompt of a batch. A response that is longer than
    `overlong_limit` less `overlong_buffer` tokens loses up to `overlong_penalty` of its reward
    (`overlong_limit` 0: none).

    `value_clip` bounds how far the updates of one batch move a critic's value, in units of reward
    (0: no bound).
    """

    baseline: str = "group-mean"
    normalisation: str = "group-std"
    discount: float = 1.0
    gae_lambda: float = 0.95
    objective: str = "ppo"
    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float = 0.0
    ratio_base: str = "proximal"
    correction: str = "truncated"
    correction_level: str = "token"
    correction_cap: float = 5.0
    correction_floor: float = 0.0
    off_policy: str = "drop"
    kl_coefficient: float = 0.0
    kl_estimator: str = "k3"
    kl_term: str = "loss"
    entropy_coefficient: float = 0.0
    aggregation: str = "token-mean"
    aggregation_length: int = 1
    dynamic_sampling: bool = False
    dynamic_sampling_limit: int = 4
    overlong_limit: int = 0
    overlong_buffer: int = 0
    overlong_penalty: float = 1.0
    value_clip: float = 0.2

    def __post_init__(self) -> None:
        """ValueError says which setting is out of its range, by the name that a user gives it."""
        for name, known in _CHOICES.items():
            if getattr(self, name) not in known:
                raise ValueError(f"{camel_case(name)} must be one of {', '.join(known)}")
        for name in ("discount", "gae_lambda", "clip_low"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{camel_case(name)} must be between 0 and 1")
        for name in _NOT_NEGATIVE:
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{camel_case(name)} must be at least 0")
        for name in ("correction_cap", "aggregation_length", "dynamic_sampling_limit"):
            if not 1 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{camel_case(name)} must be at least 1")
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
        if not self.correction_floor <= 1:
            raise ValueError("correctionFloor must be at most 1")
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


_CHOICES = {
    "baseline": BASELINES,
    "normalisation": NORMALISATIONS,
    "objective": OBJECTIVES,
    "ratio_base": RATIO_BASES,
    "correction": CORRECTIONS,
    "correction_level": LEVELS,
    "off_policy": OFF_POLICY,
    "kl_term": KL_TERMS,
    "kl_estimator": KL_ESTIMATORS,
    "aggregation": AGGREGATIONS,
}
_NOT_NEGATIVE = (
    "clip_high",
    "dual_clip",
    "correction_floor",
    "kl_coefficient",
    "entropy_coefficient",
    "overlong_limit",
    "overlong_buffer",
    "overlong_penalty",
    "value_clip",
)

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
