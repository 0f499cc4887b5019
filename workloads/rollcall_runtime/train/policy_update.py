"""One step of policy training: the role that knows about proximal policies, on any engine."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollcall_runtime.train.data_parallel_rows import rows_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rollcall_runtime.train.losses import PolicyLoss
    from rollcall_runtime.train.train_batch import TrainBatch
    from rollcall_runtime.train.train_engine import TrainEngine


class TrainingDivergedError(RuntimeError):
    """Loss or gradient is not finite; the weights are as before the optimizer step."""


@dataclass(frozen=True, slots=True)
class UpdateStats:
    """One optimizer step. `tokens` counted over all ranks; `metrics` are means over them."""

    loss: float
    gradient_norm: float
    tokens: int
    metrics: Mapping[str, float]
    learning_rate: float = 0.0


def update_policy(
    engine: TrainEngine, batch: TrainBatch, *, loss: PolicyLoss, minibatches: int
) -> list[UpdateStats]:
    """Collective. Train on `batch`, whole on every rank, in `minibatches` optimizer steps.

    The proximal policy is the one before the first step. For the first minibatch that is the policy
    in training itself, so only the others cost another forward pass. TrainingDivergedError where a
    figure is not finite.
    """
    parts = [rows_of(engine, part) for part in batch.split(minibatches)]
    if loss.uses_proximal:
        parts[1:] = [_with_proximal(engine, part) for part in parts[1:]]
    return [_update(engine, part, loss) for part in parts]


def _with_proximal(engine: TrainEngine, part: TrainBatch) -> TrainBatch:
    logprobs = engine.forward(part).logprobs
    if logprobs is None:
        raise ValueError("the proximal policy needs a language model")
    return part.with_extras(proximal_logprobs=logprobs)


def _update(engine: TrainEngine, part: TrainBatch, loss: PolicyLoss) -> UpdateStats:
    with engine.train_mode():
        result = engine.forward_backward(part, loss)
    if not math.isfinite(result.loss):
        engine.zero_grad()
        raise TrainingDivergedError(f"loss {result.loss}")
    step = engine.optimizer_step()
    if step.skipped == "not-finite":
        raise TrainingDivergedError(f"loss {result.loss}, gradient norm {step.gradient_norm}")
    return UpdateStats(
        result.loss, step.gradient_norm, result.tokens, result.metrics, step.learning_rate
    )
