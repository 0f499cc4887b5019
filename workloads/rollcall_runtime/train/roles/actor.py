"""The actor: the model whose policy is trained, and which the rollouts serve."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rollcall_runtime.train.algorithms.policy_loss import PolicyLoss
from rollcall_runtime.train.data_parallel_rows import rows_of
from rollcall_runtime.train.roles.model_update import ModelUpdate, update_model
from rollcall_runtime.train.samples.token_figures import ROWS, MismatchOf

if TYPE_CHECKING:
    from rollcall_protocol.algorithm_settings import AlgorithmSettings
    from rollcall_runtime.train.train_batch import TrainBatch
    from rollcall_runtime.train.train_engine import TrainEngine


class Actor:
    """Trains the policy on batches with advantages, in `minibatches` optimizer steps each."""

    def __init__(
        self, engine: TrainEngine, settings: AlgorithmSettings, *, minibatches: int
    ) -> None:
        self.engine = engine
        self._settings, self._loss = settings, PolicyLoss(settings)
        self._minibatches = minibatches
        self.mismatch: dict[int, list[float | None]] = {}

    def update(self, batch: TrainBatch) -> list[ModelUpdate]:
        """Collective. Train on `batch`, whole on every rank.

        `mismatch` then has that of this rank's rows that are recorded, see `MismatchOf`.

        The proximal policy is the one before the first step. For the first minibatch that is the
        policy in training itself, so only the others cost another forward pass.
        """
        parts = [rows_of(self.engine, part) for part in batch.split(self._minibatches)]
        if self._settings.needs_proximal:
            parts[1:] = [self._with_proximal(part) for part in parts[1:]]
        if ROWS not in batch.extras:
            return update_model(self.engine, parts, self._loss)
        loss = MismatchOf(self._loss)
        updates = update_model(self.engine, parts, loss)
        self.mismatch = loss.rows()
        return updates

    def _with_proximal(self, part: TrainBatch) -> TrainBatch:
        with self.engine.eval_mode():
            found = self.engine.forward(part).logprobs
        if found is None:
            raise ValueError('an actor needs a model with the head "language-model"')
        return part.with_extras(
            proximal_logprobs=torch.where(part.mask, found.to(part.mask.device), 0.0)
        )
