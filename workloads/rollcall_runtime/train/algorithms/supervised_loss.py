"""Cross-entropy of the targets: supervised fine-tuning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from rollcall_runtime.train.train_loss import LossSums

if TYPE_CHECKING:
    from torch import Tensor

    from rollcall_runtime.train.train_batch import TrainBatch
    from rollcall_runtime.train.train_loss import ModelOutput


@dataclass(frozen=True, slots=True)
class SupervisedLoss:
    """A LossFunction: -log p of each target that the mask counts, over the number of them."""

    needs_entropy: bool = False

    def denominator(self, batch: TrainBatch) -> Tensor:
        return batch.mask.sum().float()

    def __call__(self, output: ModelOutput, batch: TrainBatch, /) -> LossSums:
        """ValueError if the model has no head of tokens."""
        if output.logprobs is None:
            raise ValueError('a supervised loss needs a model with the head "language-model"')
        return LossSums(loss=-torch.where(batch.mask, output.logprobs, 0.0).sum())
