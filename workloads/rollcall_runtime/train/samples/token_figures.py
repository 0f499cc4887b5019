"""Advantage and mismatch of each token of the rows that are recorded."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from rollcall_runtime.train.process_group import TrainerProcessGroup
    from rollcall_runtime.train.train_batch import TrainBatch
    from rollcall_runtime.train.train_loss import LossFunction, LossSums, ModelOutput

ROWS = "recorded_rows"
"""The extra of a batch, [rows], that has 1 + the number of each row that is recorded; else 0."""
MOST_GATHERED = 500_000  # numbers that a rank sends, in at most 10 bytes each
_DIGITS = 5  # behind the point


@dataclass(frozen=True, slots=True)
class TokenFigures:
    """Of each token of a row that was sampled, in their order.

    `mismatch`: see SampleRecord. Empty if no rank computed the row, or if the actor rested.
    """

    advantages: list[float]
    mismatch: Sequence[float | None] = ()


class MismatchOf:
    """A loss that keeps, of recorded rows, how far trainer and rollouts are apart at each token.

    The trainer's policy is the one before the batch's first update. Where a later minibatch does
    not know it, it is the one of that moment.
    """

    def __init__(self, loss: LossFunction) -> None:
        self._loss = loss
        self._kept: list[tuple[TrainBatch, Tensor]] = []

    @property
    def needs_entropy(self) -> bool:
        return self._loss.needs_entropy

    def denominator(self, batch: TrainBatch) -> Tensor:
        return self._loss.denominator(batch)

    def __call__(self, output: ModelOutput, batch: TrainBatch, /) -> LossSums:
        if output.logprobs is not None:
            before = batch.extras.get("proximal_logprobs", output.logprobs.detach())
            # Moved to the host after the update: that would wait for the device at each one.
            self._kept.append((batch, before - batch.extras["behaviour_logprobs"]))
        return self._loss(output, batch)

    def rows(self) -> dict[int, list[float | None]]:
        """By the number of the row: its mismatch at each token that counts."""
        found: dict[int, list[float | None]] = {}
        left = MOST_GATHERED
        for batch, gaps in self._kept:
            numbers = batch.extras[ROWS].cpu()
            rows = numbers.nonzero()[:, 0]
            names = (numbers[rows].long() - 1).tolist()
            values_of = _of_rows(gaps.cpu(), batch.mask.cpu(), rows)
            for row, values in zip(names, values_of, strict=True):
                left -= len(values)
                if left >= 0:
                    found[row] = [_rounded(value) for value in values]
        return found


def with_recorded_rows(batch: TrainBatch, groups: Sequence[bool]) -> TrainBatch:
    """The batch with the extra ROWS, if a row of it is of one of these groups."""
    if not any(groups):
        return batch
    recorded = torch.tensor(groups)[batch.extras["groups"].long()]
    numbers = torch.arange(1, batch.rows + 1, dtype=torch.float32)
    return batch.with_extras(**{ROWS: torch.where(recorded, numbers, 0.0)})


def token_figures(
    ranks: TrainerProcessGroup,
    batch: TrainBatch,
    advantages: Tensor | None,
    mismatch: Mapping[int, Sequence[float | None]],
) -> dict[int, TokenFigures]:
    """Collective if the batch has rows that are recorded: their figures by the row's number.

    `advantages` are those of the whole batch, [rows, length]; `mismatch` is that of this rank's
    rows.
    """
    if ROWS not in batch.extras or advantages is None:
        return {}
    of_ranks = [mismatch]
    if ranks.size > 1:
        said = [[row, list(values)] for row, values in mismatch.items()]
        of_ranks = [dict(pairs) for pairs in ranks.gather(said)]
    every = {row: values for found in of_ranks for row, values in found.items()}
    rows = batch.extras[ROWS].nonzero()[:, 0]
    values_of = _of_rows(advantages, batch.mask, rows)
    return {
        row: TokenFigures(values, every.get(row, ()))
        for row, values in zip(rows.tolist(), values_of, strict=True)
    }


def _of_rows(values: Tensor, mask: Tensor, rows: Tensor) -> list[list[float]]:
    """Of each of these rows the values where the mask is true; one tensor for all is quicker."""
    chosen = mask[rows]
    flat, counts = values[rows][chosen].tolist(), chosen.sum(1).tolist()
    ends = list(accumulate(counts))
    return [flat[end - count : end] for end, count in zip(ends, counts, strict=True)]


def _rounded(value: float) -> float | None:
    return round(value, _DIGITS) if math.isfinite(value) else None
