"""Estimates of the divergence of one policy from another, from sampled tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

_LOG_BOUND = 20.0  # keeps the exponential of k3 finite


def kl_estimate(logprobs: Tensor, reference: Tensor, estimator: str) -> Tensor:
    """An estimate of KL(policy, reference) in nats for each token; tensors of one shape.

    With d = log policy - log reference of a token that the policy sampled: k1 is d, unbiased and
    often negative; k2 is d^2 / 2, biased and never negative; k3 is exp(-d) - 1 + d, unbiased and
    never negative. As a loss the gradient of k1 has mean 0, so that it holds back nothing; that of
    k2 is right, that of k3 nearly so for small d. As a reward k1 is right. Source: Schulman 2020,
    "Approximating KL divergence"; k3 is GRPO's (Shao et al. 2024, equation 4). ValueError for
    another name.
    """
    difference = (logprobs - reference).clamp(-_LOG_BOUND, _LOG_BOUND)
    if estimator == "k1":
        return difference
    if estimator == "k2":
        return difference**2 / 2
    if estimator == "k3":
        return (-difference).exp() - 1 + difference
    raise ValueError(f"unknown estimator {estimator!r}; known: k1, k2, k3")
