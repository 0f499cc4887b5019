"""The reward model: scores whole sequences, and learns to from pairs of responses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn.functional import pad

from rollcall_runtime.train.algorithms.preference_loss import PreferenceLoss, score_gradients
from rollcall_runtime.train.data_parallel_rows import rows_of
from rollcall_runtime.train.roles.gathered_outputs import gathered_outputs
from rollcall_runtime.train.roles.model_update import ModelUpdate, update_model
from rollcall_runtime.train.train_batch import TrainBatch

if TYPE_CHECKING:
    from torch import Tensor

    from rollcall_runtime.train.train_engine import TrainEngine


class RewardModel:
    """A model with the head "sequence-classification", of the policy's own vocabulary."""

    def __init__(self, engine: TrainEngine) -> None:
        self.engine = engine

    def scores(self, batch: TrainBatch) -> Tensor:
        """Collective. The score of each row of next-token predictions, [rows].

        The row's last target is read too: it may be the token that ends the response.
        """
        return self._scores(whole_sequences(batch))

    def update(self, batch: TrainBatch) -> ModelUpdate:
        """Collective. One step on pairs: row 2i of `batch` is better than row 2i + 1.

        The batch is whole on every rank; its rows are whole sequences (`whole_sequences`).
        """
        scores = self._scores(batch)
        gradients = torch.stack(score_gradients(scores[0::2], scores[1::2]), dim=1).flatten()
        part = rows_of(self.engine, batch.with_extras(score_gradients=gradients))
        (update,) = update_model(self.engine, [part], PreferenceLoss())
        return update

    def _scores(self, batch: TrainBatch) -> Tensor:
        return gathered_outputs(self.engine, batch, lambda output: output.scores)


def whole_sequences(batch: TrainBatch) -> TrainBatch:
    """Rows with their last target behind their tokens, and nothing to predict there."""
    tokens, targets = pad(batch.tokens, (0, 1)), pad(batch.targets, (0, 1))
    rows = torch.arange(batch.rows)
    last = (batch.lengths - 1).clamp(min=0)
    tokens[rows, batch.lengths] = batch.targets[rows, last]
    return TrainBatch(
        tokens=tokens, targets=targets, mask=pad(batch.mask, (0, 1)), lengths=batch.lengths + 1
    )
