"""What a policy is trained to lower for each token, before it is weighed and summed up.

All tensors are [rows, length], or broadcast to that: `logprobs` and `base` are log-probabilities of
the sampled tokens under the policy in training, with gradient, and under the one that ratios are
taken to; `advantages` are constants. With r = policy / base and A the advantage:

    ppo               -min(r A, clip(r) A)
    gspo              the same with s, the geometric mean of a sequence's r
    cispo             -clip(r) A log policy, clip(r) constant
    policy-gradient   -A log policy
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rollcall_runtime.train.algorithms.importance_weights import probability_ratio

if TYPE_CHECKING:
    from torch import Tensor


def clipped_surrogate(
    ratio: Tensor, advantages: Tensor, *, low: float, high: float
) -> tuple[Tensor, Tensor]:
    """-min(r A, clip(r) A) with r kept within 1 - `low` and 1 + `high`, and where the clip decides.

    Source: PPO (Schulman et al. 2017, equation 7). A `high` above `low` is DAPO's clip-higher (Yu
    et al. 2025, equation 10), which leaves unlikely tokens more room to grow.
    """
    free = ratio * advantages
    bound = ratio.clamp(1 - low, 1 + high) * advantages
    return -torch.minimum(free, bound), bound < free


def dual_clipped(losses: Tensor, advantages: Tensor, *, bound: float) -> Tensor:
    """`losses` of bad tokens held at -`bound` A, however much likelier they have become.

    Source: dual-clip PPO (Ye et al. 2020, equation 5).
    """
    return torch.where(advantages < 0, torch.minimum(losses, -bound * advantages), losses)


def mean_sequence_ratio(logprobs: Tensor, base: Tensor, mask: Tensor) -> Tensor:
    """The geometric mean of a row's ratios, at each of its positions.

    Its gradient there is that of the position's own log-probability times the mean ratio, so that
    summed up with equal weights it is the gradient of the mean ratio itself, and tokens may have
    advantages of their own. Source: GSPO (Zheng et al. 2025, equation 7; its token form, equation
    14).
    """
    difference = torch.where(mask, logprobs.detach() - base, 0.0).sum(1, keepdim=True)
    mean = difference / mask.sum(1, keepdim=True).clamp(min=1)
    return probability_ratio(logprobs, logprobs.detach() - mean)


def clipped_weight_gradient(
    logprobs: Tensor, ratio: Tensor, advantages: Tensor, *, low: float, high: float
) -> tuple[Tensor, Tensor]:
    """-clip(r) A log policy with a constant r, and where the clip decides.

    Every token keeps a gradient, also those that PPO's clip would leave out. Source: CISPO
    (MiniMax-M1, 2025, equation 4).
    """
    weight = ratio.detach().clamp(1 - low, 1 + high)
    return -weight * advantages * logprobs, weight != ratio.detach()


def policy_gradient(logprobs: Tensor, advantages: Tensor) -> Tensor:
    """-A log policy. Source: REINFORCE (Williams 1992)."""
    return -advantages * logprobs
