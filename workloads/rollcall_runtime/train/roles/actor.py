"""The actor: the model whose policy is trained, and which the rollouts serve."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rollcall_runtime.train.algorithms.policy_loss import PolicyLoss
from rollcall_runtime.train.roles.model_update import ModelUpdate, update_model

if TYPE_CHECKING:
    from torch import Tensor

    from rollcall_protocol.algorithm_settings import AlgorithmSettings
    from rollcall_runtime.train.train_batch import TrainBatch
    from rollcall_runtime.train.train_engine import TrainEngine


def batch_logprobs(engine: TrainEngine, batch: TrainBatch) -> Tensor:
    """Collective. Log-probabilities of the targets, [rows, length]; 0 where the mask is false."""
    with engine.eval_mode():
        found = engine.forward(batch).logprobs
    if found is None:
        raise ValueError('log-probabilities need a model with the head "language-model"')
    return torch.where(batch.mask, found.to(batch.mask.device), 0.0)


class Actor:
    """Trains the policy on batches with advantages, in `minibatches` optimizer steps each."""

    def __init__(
        self, engine: TrainEngine, settings: AlgorithmSettings, *, minibatches: int
    ) -> None:
        self.engine = engine
        self._settings, self._loss = settings, PolicyLoss(settings)
        self._minibatches = minibatches

    def update(self, batch: TrainBatch) -> list[ModelUpdate]:
        """Collective. Train on this rank's rows, of which all ranks have equally many.

        The proximal policy is the one before the first step. For the first minibatch that is the
        policy in training itself, so only the others cost another forward pass.
        """
        first, *others = batch.split(self._minibatches)
        if self._settings.needs_proximal:
            others = [
                part.with_extras(proximal_logprobs=batch_logprobs(self.engine, part))
                for part in others
            ]
        return update_model(self.engine, [first, *others], self._loss)
