"""The critic's loss: the square of what it missed of the returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from rollcall_runtime.train.train_loss import LossSums

if TYPE_CHECKING:
    from torch import Tensor

    from rollcall_runtime.train.train_batch import TrainBatch
    from rollcall_runtime.train.train_loss import ModelOutput


def clipped_value_loss(
    values: Tensor, old_values: Tensor, returns: Tensor, *, clip: float
) -> tuple[Tensor, Tensor]:
    """max((V - R)^2, (clip(V) - R)^2) / 2, and where the clip decides; tensors of one shape.

    clip(V) keeps V within `clip` of the value before the batch's first update; 0: no bound. Source:
    OpenAI's implementation of PPO, as described by Huang et al. 2022, "The 37 implementation
    details of PPO", number 9.
    """
    free = (values - returns) ** 2
    if not clip:
        return free / 2, torch.zeros_like(free, dtype=torch.bool)
    near = old_values + (values - old_values).clamp(-clip, clip)
    bound = (near - returns) ** 2
    return torch.maximum(free, bound) / 2, bound > free


@dataclass(frozen=True, slots=True)
class ValueLoss:
    """A LossFunction for the head "value".

    Of the batch's extras it reads "returns" and "old_values", both [rows, length].
    """

    clip: float
    needs_entropy: bool = False

    def denominator(self, batch: TrainBatch) -> Tensor:
        return batch.mask.sum().float()

    def __call__(self, output: ModelOutput, batch: TrainBatch, /) -> LossSums:
        """ValueError if the model has no head of values."""
        if output.values is None:
            raise ValueError('a value loss needs a model with the head "value"')
        mask, returns = batch.mask, batch.extras["returns"]
        values = torch.where(mask, output.values, 0.0)
        losses, clipped = clipped_value_loss(
            values, batch.extras["old_values"], returns, clip=self.clip
        )
        count, current = mask.sum(), values.detach()

        def summed(tensor: Tensor) -> tuple[Tensor, Tensor]:
            return torch.where(mask, tensor.float(), 0.0).sum(), count

        return LossSums(
            loss=torch.where(mask, losses, 0.0).sum(),
            metrics={
                "vf_clipfrac": summed(clipped),
                "vpred_mean": summed(current),
                "return_mean": summed(returns),
                "value_error": summed((current - returns) ** 2),
            },
        )
