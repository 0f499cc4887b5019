"""Corrections for samples of another policy than the one in training.

With behave the policy that sampled a token (its recorded log-probability) and base the policy that
the update starts from, w = base / behave makes an average over behave's samples one over base's.
All tensors are [rows, length]; log-probabilities are those of the sampled tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

_LOG_BOUND = 20.0  # keeps exp of a log-ratio finite; ratios this far off are clipped or capped


@dataclass(frozen=True, slots=True)
class ImportanceWeights:
    """`raw` are the plain ratios, `applied` what losses are multiplied by.

    `changed` (bool) says where a cap or floor made them differ. All [rows, length] and constant.
    """

    raw: Tensor
    applied: Tensor
    changed: Tensor


def probability_ratio(above: Tensor, below: Tensor) -> Tensor:
    """exp(above - below), always finite."""
    return (above - below).clamp(-_LOG_BOUND, _LOG_BOUND).exp()


def sequence_ratio(above: Tensor, below: Tensor, mask: Tensor) -> Tensor:
    """The product of the ratios of a row's tokens, at each of its positions; always finite."""
    logs = torch.where(mask, above - below, 0.0).sum(1, keepdim=True)
    return logs.clamp(-_LOG_BOUND, _LOG_BOUND).exp().expand_as(above)


def truncated(ratio: Tensor, *, cap: float) -> Tensor:
    """min(ratio, cap): a bounded variance for a small bias.

    Source: truncated importance sampling (Ionides 2008; IMPALA, Espeholt et al. 2018); between
    rollouts and trainer Yao et al. 2025.
    """
    return ratio.clamp(max=cap)


def masked(ratio: Tensor, *, cap: float, floor: float) -> Tensor:
    """The ratio between `floor` and `cap`, and 0 outside: what is too far off teaches nothing.

    Source: IcePop (Ling team 2025); at the level of sequences the rejection of samples.
    """
    return torch.where((ratio <= cap) & (ratio >= floor), ratio, 0.0)


def importance_weights(
    base: Tensor,
    behaviour: Tensor,
    mask: Tensor,
    *,
    correction: str,
    level: str,
    cap: float,
    floor: float,
) -> ImportanceWeights:
    """The weights that the settings of `AlgorithmSettings` give; `base` carries no gradient."""
    ratio = (
        sequence_ratio(base, behaviour, mask)
        if level == "sequence"
        else probability_ratio(base, behaviour)
    )
    if correction == "truncated":
        applied = truncated(ratio, cap=cap)
    elif correction == "masked":
        applied = masked(ratio, cap=cap, floor=floor)
    else:
        return ImportanceWeights(ratio, torch.ones_like(ratio), torch.zeros_like(mask))
    return ImportanceWeights(ratio, applied, applied != ratio)
