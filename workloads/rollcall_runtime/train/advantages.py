"""Advantages from rewards. Source: GRPO (Shao et al. 2024, DeepSeekMath)."""

from collections.abc import Sequence

import torch
from torch import Tensor

_EPSILON = 1e-6  # in units of reward: far below any real spread


def group_normalised(rewards: Sequence[Sequence[float]]) -> Tensor:
    """(reward - mean) / standard deviation within each prompt's group, float32 [all samples].

    The deviation is the population's, so a group whose samples are all alike, or a single sample,
    teaches nothing: its advantages are 0.
    """
    advantages = []
    for group in rewards:
        values = torch.tensor(group, dtype=torch.float32)
        deviation, mean = torch.std_mean(values, correction=0)
        advantages.append((values - mean) / (deviation + _EPSILON))
    return torch.cat(advantages)
