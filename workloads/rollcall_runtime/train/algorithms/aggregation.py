"""How the losses of tokens become one number: what weight a token has, and what divides the sum.

Engines cut a batch into micro-batches of whole rows, so weights depend on a row alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def token_weights(mask: Tensor, *, aggregation: str, length: int) -> Tensor:
    """The weight of each token's loss in the sum, float32 [rows, length]; 0 outside `mask`.

    token-mean: every token alike, so long responses count for more (DAPO, Yu et al. 2025, equation
    8). sequence-mean: every sequence alike (GRPO, Shao et al. 2024, equation 3). sequence-sum:
    every token by the constant 1 / `length`, so that a token's weight does not depend on how long
    its own sequence is (Dr. GRPO, Liu et al. 2025, section 3.2; with length 1 the log-probability
    of the whole response, as in RLOO). ValueError for another name.
    """
    weights = mask.float()
    if aggregation == "token-mean":
        return weights
    if aggregation == "sequence-mean":
        return weights / weights.sum(1, keepdim=True).clamp(min=1)
    if aggregation == "sequence-sum":
        return weights / length
    raise ValueError(f"unknown aggregation {aggregation!r}")


def aggregation_denominator(mask: Tensor, *, aggregation: str) -> Tensor:
    """What the sum is divided by: the tokens, or the rows that have any. A float32 scalar."""
    counted = mask if aggregation == "token-mean" else mask.any(1)
    return counted.sum().float()
