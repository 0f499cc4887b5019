"""Advantages from rewards: how much better a sample, or a token, was than expected.

Rewards of samples are [samples]; `groups` is int64 [samples], the number of each sample's prompt
within the batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

_EPSILON = 1e-6  # in units of reward: far below any real spread


def group_mean(rewards: Tensor, groups: Tensor) -> Tensor:
    """The mean reward of each sample's group, [samples]: the baseline of GRPO.

    Source: DeepSeekMath (Shao et al. 2024), section 4.1.2.
    """
    index = _group_index(groups)
    return (_sums(rewards, index) / _sums(torch.ones_like(rewards), index))[index]


def leave_one_out_mean(rewards: Tensor, groups: Tensor) -> Tensor:
    """The mean reward of the other samples of each sample's group, [samples].

    Unlike the group's mean it does not depend on the sample itself, so the policy gradient stays
    unbiased. A sample without others is its own baseline. Source: RLOO (Ahmadian et al. 2024,
    equation 8; Kool et al. 2019).
    """
    index = _group_index(groups)
    others = _sums(torch.ones_like(rewards), index)[index] - 1
    mean = (_sums(rewards, index)[index] - rewards) / others.clamp(min=1)
    return torch.where(others > 0, mean, rewards)


def group_deviation(rewards: Tensor, groups: Tensor) -> Tensor:
    """The standard deviation (of the population) of each sample's group, [samples].

    Source: DeepSeekMath (Shao et al. 2024), section 4.1.2. Dr. GRPO (Liu et al. 2025, section 3.1)
    leaves this division out, because it gives more weight to prompts that are nearly solved or
    nearly hopeless.
    """
    index = _group_index(groups)
    squares = (rewards - group_mean(rewards, groups)) ** 2
    return (_sums(squares, index) / _sums(torch.ones_like(rewards), index))[index].sqrt()


def sample_advantages(
    rewards: Tensor, groups: Tensor, *, baseline: str, normalisation: str
) -> Tensor:
    """Advantages of samples, float32 [samples], by settings of `AlgorithmSettings`.

    Batch normalisation is left to `normalised_over_batch`, as it goes over tokens. A group whose
    rewards are all alike teaches nothing: its advantages are exactly 0. ValueError for the baseline
    of a critic.
    """
    # In double precision the mean of equal float32 numbers is that number.
    exact = rewards.double()
    if baseline == "group-mean":
        advantages = exact - group_mean(exact, groups)
    elif baseline == "leave-one-out":
        advantages = exact - leave_one_out_mean(exact, groups)
    elif baseline == "none":
        advantages = exact
    else:
        raise ValueError(f"the baseline {baseline} has no advantages of whole samples")
    if normalisation == "group-std":
        advantages = advantages / (group_deviation(exact, groups) + _EPSILON)
    return advantages.float()


def trajectory_advantages(
    rewards: Tensor, groups: Tensor, trajectories: Tensor, *, baseline: str, normalisation: str
) -> Tensor:
    """As `sample_advantages` of trajectories, each counted once: its samples have its advantage.

    `trajectories` are int64 [samples], a number that the samples of one share. Its reward is the
    mean of its samples', which differ by penalties and a reward model's scores alone.
    """
    index = _group_index(trajectories)
    exact = rewards.double()
    means = _sums(exact, index) / _sums(torch.ones_like(exact), index)
    own = torch.zeros_like(means, dtype=torch.int64).index_copy_(0, index, groups)
    found = sample_advantages(means, own, baseline=baseline, normalisation=normalisation)
    return found[index]


def rewards_to_go(rewards: Tensor, mask: Tensor) -> Tensor:
    """Each token's reward and all later ones of its row, [rows, length]; 0 where `mask` is false.

    Source: REINFORCE++ (Hu et al. 2025), whose advantage is the sample's reward less the KL
    penalties from the token on.
    """
    kept = torch.where(mask, rewards, 0.0)
    return torch.where(mask, kept.flip(1).cumsum(1).flip(1), 0.0)


def generalised_advantages(
    rewards: Tensor, values: Tensor, mask: Tensor, *, discount: float, gae_lambda: float
) -> tuple[Tensor, Tensor]:
    """Advantages and returns of tokens, both [rows, length] and 0 where `mask` is false.

    `rewards` and `values` are [rows, length]; a value is what the critic expects before the token.
    With d_t = r_t + discount V_(t+1) - V_t the advantage is the sum of (discount gae_lambda)^k
    d_(t+k), and the return, which the critic learns, is advantage plus value. The positions that
    count follow one another by the mask, so prompts and tokens of tools between them take no time.
    Source: generalised advantage estimation (Schulman et al. 2016, equations 11 to 16).
    """
    advantages = torch.zeros_like(rewards)
    later = rewards.new_zeros(len(rewards))  # advantage and value of the next token that counts
    next_value = rewards.new_zeros(len(rewards))
    for position in range(rewards.shape[1] - 1, -1, -1):
        counts = mask[:, position]
        delta = rewards[:, position] + discount * next_value - values[:, position]
        later = torch.where(counts, delta + discount * gae_lambda * later, later)
        next_value = torch.where(counts, values[:, position], next_value)
        advantages[:, position] = torch.where(counts, later, 0.0)
    return advantages, torch.where(mask, advantages + values, 0.0)


def normalised_over_batch(advantages: Tensor, mask: Tensor) -> Tensor:
    """Advantages [rows, length] with mean 0 and deviation 1 over all tokens; 0 outside `mask`.

    Source: the global normalisation of REINFORCE++ (Hu et al. 2025), also usual in implementations
    of PPO.
    """
    kept = torch.where(mask, advantages, 0.0).double()
    count = mask.sum().clamp(min=1)
    centred = torch.where(mask, kept - kept.sum() / count, 0.0)
    deviation = ((centred**2).sum() / count).sqrt()
    return (centred / (deviation + _EPSILON)).float()


def _group_index(groups: Tensor) -> Tensor:
    """The groups numbered from 0 on, whatever their own numbers are."""
    index: Tensor
    _, index = torch.unique(groups, return_inverse=True)
    return index


def _sums(values: Tensor, index: Tensor) -> Tensor:
    """The sum of each group, [groups]."""
    count = int(index.max()) + 1 if len(index) else 0
    return values.new_zeros(count).index_add_(0, index, values)


def overlong_penalty(tokens: Tensor, *, limit: int, buffer: int) -> Tensor:
    """What is added to the reward of responses of so many `tokens`: 0 to -1, float32, same shape.

    0 up to `limit` - `buffer` tokens, -1 from `limit` on, a straight line between. A sample that
    was cut off is punished by less than one that went on, where a sudden penalty would punish sound
    reasoning at random. Source: soft overlong punishment, DAPO (Yu et al. 2025, equation 13).
    """
    beyond = tokens.float() - (limit - buffer)
    return -(beyond / buffer).clamp(0.0, 1.0)
