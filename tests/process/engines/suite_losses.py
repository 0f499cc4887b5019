"""Losses of the suite, by the name that tester and ranks give them.

Between them they divide by tokens and by rows, read extras of both shapes, and ask for entropy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from rollcall_runtime.train.train_loss import LossFunction, LossSums, ModelOutput

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from rollcall_runtime.train.train_batch import TrainBatch


@dataclass(frozen=True, slots=True)
class TokenMeanLoss:
    """Cross-entropy of the positions that count, averaged over them; `scale` multiplies it."""

    scale: float = 1.0
    needs_entropy: bool = False

    def denominator(self, batch: TrainBatch) -> Tensor:
        return batch.mask.sum()

    def __call__(self, output: ModelOutput, batch: TrainBatch, /) -> LossSums:
        losses = -_given(output.logprobs)[batch.mask]
        found = losses.detach()
        return LossSums(
            losses.sum() * self.scale,
            metrics={"cross_entropy": (found.sum(), batch.mask.sum())},
            maxima={"worst_token": torch.cat([found, found.new_zeros(1)]).max()},
        )


@dataclass(frozen=True, slots=True)
class RowMeanLoss:
    """Weighted log-probabilities times an advantage, and an entropy bonus, averaged over rows."""

    needs_entropy: bool = True

    def denominator(self, batch: TrainBatch) -> Tensor:
        return torch.tensor(batch.rows, device=batch.tokens.device)

    def __call__(self, output: ModelOutput, batch: TrainBatch, /) -> LossSums:
        weights = batch.extras["weight"] * batch.extras["advantage"][:, None]
        gain = _given(output.logprobs) * weights + 0.1 * _given(output.entropy)
        entropy = _given(output.entropy).detach()[batch.mask].sum()
        return LossSums(-gain[batch.mask].sum(), metrics={"entropy": (entropy, batch.mask.sum())})


@dataclass(frozen=True, slots=True)
class ValueLoss:
    """Squared error of the value head, averaged over the positions that count."""

    needs_entropy: bool = False

    def denominator(self, batch: TrainBatch) -> Tensor:
        return batch.mask.sum()

    def __call__(self, output: ModelOutput, batch: TrainBatch, /) -> LossSums:
        errors = _given(output.values) - batch.extras["return"]
        return LossSums(errors[batch.mask].square().sum())


@dataclass(frozen=True, slots=True)
class ScoreLoss:
    """Squared error of the score of each row, averaged over rows."""

    needs_entropy: bool = False

    def denominator(self, batch: TrainBatch) -> Tensor:
        return torch.tensor(batch.rows, device=batch.tokens.device)

    def __call__(self, output: ModelOutput, batch: TrainBatch, /) -> LossSums:
        return LossSums((_given(output.scores) - batch.extras["label"]).square().sum())


LOSSES: Mapping[str, LossFunction] = {
    "token mean": TokenMeanLoss(),
    "row mean": RowMeanLoss(),
    "value": ValueLoss(),
    "score": ScoreLoss(),
    "not finite": TokenMeanLoss(float("nan")),
    "nothing to learn": TokenMeanLoss(0.0),
}


def _given(tensor: Tensor | None) -> Tensor:
    if tensor is None:
        raise ValueError("the model's head does not give what this loss reads")
    return tensor
