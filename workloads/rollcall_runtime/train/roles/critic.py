"""The critic: what reward is to be expected from each token on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rollcall_runtime.train.algorithms.value_loss import ValueLoss
from rollcall_runtime.train.roles.model_update import ModelUpdate, update_model

if TYPE_CHECKING:
    from torch import Tensor

    from rollcall_runtime.train.train_batch import TrainBatch
    from rollcall_runtime.train.train_engine import TrainEngine


class Critic:
    """A model with the head "value", trained on returns in `minibatches` steps a batch."""

    def __init__(self, engine: TrainEngine, *, value_clip: float, minibatches: int) -> None:
        self.engine = engine
        self._loss, self._minibatches = ValueLoss(value_clip), minibatches

    def values(self, batch: TrainBatch) -> Tensor:
        """Collective. The values before each target, [rows, length]; 0 outside the mask."""
        with self.engine.eval_mode():
            found = self.engine.forward(batch).values
        if found is None:
            raise ValueError('a critic needs a model with the head "value"')
        return torch.where(batch.mask, found.to(batch.mask.device), 0.0)

    def update(self, batch: TrainBatch) -> list[ModelUpdate]:
        """Collective. Train on this rank's rows, with "returns" and "old_values"."""
        return update_model(self.engine, batch.split(self._minibatches), self._loss)
