"""An optimizer step for each minibatch, and none from figures that are not finite."""

import math
from dataclasses import replace

import pytest
import torch

from rollcall_runtime.train.algorithms.supervised_loss import SupervisedLoss
from rollcall_runtime.train.roles.model_update import update_model
from rollcall_runtime.train.train_batch import TrainBatch
from rollcall_runtime.train.train_engine import BatchResult
from rollcall_runtime.train.train_loss import LossFunction
from tests.unit.rollcall_runtime.train.roles.bigram_engine import (
    VOCABULARY,
    BigramEngine,
    sample_batch,
)


def test_each_minibatch_is_a_step() -> None:
    engine, batch = BigramEngine(), sample_batch([0.0] * 6)
    updates = update_model(engine, batch.split(3), SupervisedLoss())
    assert [part.rows for part in engine.batches] == [2, 2, 2]
    assert [update.skipped for update in updates] == ["", "", ""]
    assert updates[0].loss == pytest.approx(math.log(VOCABULARY))
    assert sum(update.tokens for update in updates) == int(batch.mask.sum())
    assert all(update.gradient_norm > 0 for update in updates)
    assert updates[0].learning_rate == 1.0


class EngineOfInfiniteLoss(BigramEngine):
    """Its loss is not finite, though its gradient is."""

    def forward_backward(self, batch: TrainBatch, loss: LossFunction) -> BatchResult:
        return replace(super().forward_backward(batch, loss), loss=math.inf)


def test_a_loss_that_is_not_finite_leaves_the_weights() -> None:
    engine, batch = EngineOfInfiniteLoss(), sample_batch([0.0] * 2)
    (update,) = update_model(engine, [batch], SupervisedLoss())
    assert update.skipped == "not-finite"
    assert not engine.table.any()
    assert engine.table.grad is None, "the next step must not see this gradient"


def test_a_gradient_that_is_not_finite_leaves_the_weights_and_later_steps_count() -> None:
    engine, batch = BigramEngine(), sample_batch([0.0] * 2)
    with torch.no_grad():
        engine.table.fill_(math.nan)
    (update,) = update_model(engine, [batch], SupervisedLoss())
    assert update.skipped == "not-finite"
    assert math.isnan(update.loss)
    assert engine.table.grad is None, "the next step must not see this gradient"
    engine.load_weights({"table": torch.zeros(VOCABULARY, VOCABULARY)})
    (update,) = update_model(engine, [batch], SupervisedLoss())
    assert update.skipped == ""
