"""The policy's loss: an objective, weighed for stale samples, with KL and entropy terms.

Which of them, the settings say. With pi the policy in training, behave the policy that sampled a
token, prox the policy just before the batch's first update and ref the reference:

    loss of a token = w objective(pi / base) + klCoefficient KL(pi, ref) - entropyCoefficient H(pi)

where base is prox or behave, and w the correction for base / behave. The decoupled loss of AReaL
(Fu et al. 2025, after Hilton et al. 2022) is base = prox with truncated weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from rollcall_runtime.train.algorithms.importance_weights import (
    importance_weights,
    probability_ratio,
)
from rollcall_runtime.train.algorithms.kl_estimators import kl_estimate
from rollcall_runtime.train.algorithms.policy_objectives import (
    clipped_surrogate,
    clipped_weight_gradient,
    dual_clipped,
    mean_sequence_ratio,
    policy_gradient,
)
from rollcall_runtime.train.train_loss import LossSums

if TYPE_CHECKING:
    from torch import Tensor

    from rollcall_protocol.algorithm_settings import AlgorithmSettings
    from rollcall_runtime.train.train_batch import TrainBatch
    from rollcall_runtime.train.train_loss import ModelOutput


@dataclass(frozen=True, slots=True)
class PolicyLoss:
    """A LossFunction for the head "language-model".

    Of the batch's extras it reads "advantages" ([rows] or [rows, length]) and "behaviour_logprobs",
    and where the settings ask for them "proximal_logprobs" and "reference_logprobs" (all [rows,
    length]). A batch without "proximal_logprobs" is taken as the first after the weights changed:
    prox is pi itself. "same_version" ([rows, length], 1 or 0) says which tokens were sampled with
    the weights that the batch is trained on; without it all count in the mismatch. "shares"
    ([rows]): of a row in its trajectory; without it each row is one.

    The metrics have the names that verl and prime-rl use; docs/algorithms.md explains them.
    """

    settings: AlgorithmSettings

    @property
    def needs_entropy(self) -> bool:
        return self.settings.entropy_coefficient > 0

    def denominator(self, batch: TrainBatch) -> Tensor:
        return aggregation_denominator(
            batch.mask, batch.extras.get("shares"), aggregation=self.settings.aggregation
        )

    def __call__(self, output: ModelOutput, batch: TrainBatch, /) -> LossSums:
        """ValueError if the model has no head of tokens."""
        if output.logprobs is None:
            raise ValueError('a policy loss needs a model with the head "language-model"')
        settings, terms = self.settings, _Terms(batch)
        # Outside the mask all is 0 from here on, so nothing there can overflow or leak.
        logprobs = terms.masked(output.logprobs)
        current = logprobs.detach()
        behaviour = terms.masked(batch.extras["behaviour_logprobs"])
        before = terms.masked(batch.extras.get("proximal_logprobs", current))
        base = before if settings.ratio_base == "proximal" else behaviour
        weights = importance_weights(
            before if settings.needs_proximal else current,
            behaviour,
            batch.mask,
            correction=settings.correction,
            level=settings.correction_level,
            cap=settings.correction_cap,
            floor=settings.correction_floor,
        )
        losses = weights.applied * self._objective(logprobs, base, terms)
        losses = losses + self._regularisation(logprobs, output, terms)
        terms.mean("is_weight", weights.raw)
        terms.mean("is_capped", weights.changed)
        terms.mean("ppo_kl", before - current)
        terms.mean("behave_kl", behaviour - before)
        terms.mismatch(behaviour, before)
        weights_of_tokens = token_weights(
            batch.mask,
            batch.extras.get("shares"),
            aggregation=settings.aggregation,
            length=settings.aggregation_length,
        )
        return LossSums(
            loss=(losses * weights_of_tokens).sum(),
            metrics=terms.metrics,
            maxima=terms.maxima,
        )

    def _objective(self, logprobs: Tensor, base: Tensor, terms: _Terms) -> Tensor:
        settings, advantages = self.settings, terms.advantages
        if settings.objective == "policy-gradient":
            return policy_gradient(logprobs, advantages)
        bounds = {"low": settings.clip_low, "high": settings.clip_high}
        if settings.objective == "gspo":
            ratio = mean_sequence_ratio(logprobs, base, terms.mask)
        else:
            ratio = probability_ratio(logprobs, base)
        if settings.objective == "cispo":
            losses, clipped = clipped_weight_gradient(logprobs, ratio, advantages, **bounds)
        else:
            losses, clipped = clipped_surrogate(ratio, advantages, **bounds)
        if settings.dual_clip:
            losses = dual_clipped(losses, advantages, bound=settings.dual_clip)
        terms.mean("ratio", ratio)
        terms.mean("pg_clipfrac", clipped)
        return losses

    def _regularisation(self, logprobs: Tensor, output: ModelOutput, terms: _Terms) -> Tensor:
        settings, added = self.settings, torch.zeros_like(logprobs)
        if settings.needs_reference and settings.kl_term == "loss":
            reference = terms.masked(terms.batch.extras["reference_logprobs"])
            divergence = kl_estimate(logprobs, reference, settings.kl_estimator)
            added = added + settings.kl_coefficient * divergence
            terms.mean("kl_loss", divergence)
        if settings.entropy_coefficient:
            if output.entropy is None:
                raise ValueError("the engine gave no entropy, though the loss needs it")
            entropy = terms.masked(output.entropy)
            added = added - settings.entropy_coefficient * entropy
            terms.mean("entropy", entropy)
        return added


class _Terms:
    """One micro-batch, and what is measured of it."""

    def __init__(self, batch: TrainBatch) -> None:
        self.batch, self.mask = batch, batch.mask
        advantages = batch.extras["advantages"]
        self.advantages = advantages[:, None] if advantages.ndim == 1 else advantages
        self.metrics: dict[str, tuple[Tensor, Tensor]] = {}
        self.maxima: dict[str, Tensor] = {}
        self._count = batch.mask.sum()

    def masked(self, values: Tensor) -> Tensor:
        """`values` where they count, else 0."""
        return torch.where(self.mask, values, 0.0)

    def mean(self, name: str, values: Tensor) -> None:
        """A metric: the mean over all tokens."""
        self.metrics[name] = self.masked(values.detach().float()).sum(), self._count

    def mismatch(self, behaviour: Tensor, trained: Tensor) -> None:
        """How far trainer and rollouts are apart on tokens of the same weights.

        `same_version` is the share of such tokens, `mismatch_kl` is k3, `mismatch_ratio` is the
        largest factor between the two probabilities.
        """
        same = self.mask
        if "same_version" in self.batch.extras:
            same = same & (self.batch.extras["same_version"] > 0)
        self.mean("same_version", same)
        apart = torch.where(same, kl_estimate(behaviour, trained, "k3"), 0.0)
        self.metrics["mismatch_kl"] = apart.sum(), same.sum()
        factors = torch.maximum(
            probability_ratio(behaviour, trained), probability_ratio(trained, behaviour)
        )
        kept = torch.where(same, factors, 1.0).flatten()
        self.maxima["mismatch_ratio"] = torch.cat([kept, kept.new_ones(1)]).max()


def token_weights(
    mask: Tensor, shares: Tensor | None = None, *, aggregation: str, length: int
) -> Tensor:
    """The weight of each token's loss in the sum, float32 [rows, length]; 0 outside `mask`.

    token-mean: every token alike, so long responses count for more (DAPO, Yu et al. 2025, equation
    8). sequence-mean: every sequence alike (GRPO, Shao et al. 2024, equation 3). sequence-sum:
    every token by the constant 1 / `length`, so that a token's weight does not depend on how long
    its own sequence is (Dr. GRPO, Liu et al. 2025, section 3.2; with length 1 the log-probability
    of the whole response, as in RLOO). ValueError for another name.

    A sequence is a whole trajectory: `shares` ([rows]) are those of its rows, None where each row
    is one.
    """
    weights = mask.float()
    if aggregation == "token-mean":
        return weights
    if aggregation == "sequence-mean":
        means = weights / weights.sum(1, keepdim=True).clamp(min=1)
        return means if shares is None else means * shares[:, None]
    if aggregation == "sequence-sum":
        return weights / length
    raise ValueError(f"unknown aggregation {aggregation!r}")


def aggregation_denominator(
    mask: Tensor, shares: Tensor | None = None, *, aggregation: str
) -> Tensor:
    """What the sum is divided by: the tokens, or the trajectories that have any, of which the rows
    are these `shares`. A float32 scalar.
    """
    if aggregation == "token-mean":
        return mask.sum().float()
    there = mask.any(1).float()
    return (there if shares is None else there * shares).sum()
