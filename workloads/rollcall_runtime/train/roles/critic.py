"""The critic: what reward is to be expected from each token on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollcall_runtime.train.algorithms.value_loss import ValueLoss
from rollcall_runtime.train.data_parallel_rows import rows_of
from rollcall_runtime.train.roles.gathered_outputs import gathered_outputs
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
        return gathered_outputs(self.engine, batch, lambda output: output.values)

    def update(self, batch: TrainBatch) -> list[ModelUpdate]:
        """Collective. Train on `batch`, whole on every rank, with "returns" and "old_values"."""
        parts = [rows_of(self.engine, part) for part in batch.split(self._minibatches)]
        return update_model(self.engine, parts, self._loss)
