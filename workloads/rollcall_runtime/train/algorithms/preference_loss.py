"""The loss of a reward model that learns from pairs: which of two responses is better.

An engine may put the two rows of a pair into different micro-batches, or on different ranks. So the
gradient is computed in two passes: scores of all rows first, then each row's own part.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.nn import functional as F  # noqa: N812 - torch's own convention

from rollcall_runtime.train.train_loss import LossSums

if TYPE_CHECKING:
    from torch import Tensor

    from rollcall_runtime.train.train_batch import TrainBatch
    from rollcall_runtime.train.train_loss import ModelOutput


def bradley_terry_loss(chosen: Tensor, rejected: Tensor) -> Tensor:
    """-log sigmoid(chosen - rejected) of each pair of scores, [pairs].

    Source: Bradley and Terry 1952; as the loss of a reward model Ouyang et al. 2022, equation 1.
    """
    return -F.logsigmoid(chosen - rejected)


def score_gradients(chosen: Tensor, rejected: Tensor) -> tuple[Tensor, Tensor]:
    """The derivatives of `bradley_terry_loss` by the scores of both, [pairs] each."""
    share = torch.sigmoid(rejected - chosen)
    return -share, share


@dataclass(frozen=True, slots=True)
class PreferenceLoss:
    """A LossFunction for the head "sequence-classification".

    Reads "score_gradients" [rows], as above. Its value is the sum of scores times these constants,
    whose gradient is that of `bradley_terry_loss`; rows are counted by halves, two to a pair.
    """

    needs_entropy: bool = False

    def denominator(self, batch: TrainBatch) -> Tensor:
        return batch.mask.any(1).sum() / 2

    def __call__(self, output: ModelOutput, batch: TrainBatch, /) -> LossSums:
        """ValueError if the model has no head of scores."""
        if output.scores is None:
            raise ValueError(
                'a preference loss needs a model with the head "sequence-classification"'
            )
        counts = batch.mask.any(1)
        losses = output.scores * batch.extras["score_gradients"]
        return LossSums(loss=torch.where(counts, losses, 0.0).sum())
