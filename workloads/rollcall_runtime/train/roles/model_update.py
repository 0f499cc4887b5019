"""Optimizer steps of one model: a backward pass and a step for each minibatch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rollcall_runtime.train.train_batch import TrainBatch
    from rollcall_runtime.train.train_engine import TrainEngine
    from rollcall_runtime.train.train_loss import LossFunction


@dataclass(frozen=True, slots=True)
class ModelUpdate:
    """One optimizer step over all ranks' rows.

    `loss` and `metrics` are means over the minibatch, `gradient_norm` is that before clipping (NaN
    if none was computed), `tokens` are positions that counted. `skipped` says why the weights
    stayed: "not-finite", "no-gradient" or "".
    """

    loss: float
    gradient_norm: float
    learning_rate: float
    tokens: int
    metrics: Mapping[str, float]
    skipped: str = ""


def update_model(
    engine: TrainEngine, minibatches: Sequence[TrainBatch], loss: LossFunction
) -> list[ModelUpdate]:
    """Collective. One optimizer step for each minibatch, of which these are this rank's rows.

    A loss that is not finite leaves the weights as they are, and so does such a gradient.
    """
    with engine.train_mode():
        return [_update(engine, minibatch, loss) for minibatch in minibatches]


def _update(engine: TrainEngine, minibatch: TrainBatch, loss: LossFunction) -> ModelUpdate:
    rate = engine.learning_rate
    result = engine.forward_backward(minibatch, loss)
    if math.isfinite(result.loss):
        step = engine.optimizer_step()
        norm, skipped = step.gradient_norm, str(step.skipped)
    else:
        engine.zero_grad()
        norm, skipped = math.nan, "not-finite"
    return ModelUpdate(
        loss=result.loss,
        gradient_norm=norm,
        learning_rate=rate,
        tokens=result.tokens,
        metrics=result.metrics,
        skipped=skipped,
    )
