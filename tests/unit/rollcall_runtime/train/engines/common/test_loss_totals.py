"""Sums of micro-batches and ranks become means."""

import math

import pytest
import torch
from torch import Tensor

from rollcall_runtime.train.engines.common.loss_totals import LossTotals
from rollcall_runtime.train.train_loss import LossSums


def sums(loss: float, total: float, count: float, highest: float) -> LossSums:
    return LossSums(
        torch.tensor(loss, requires_grad=True),
        metrics={"kl": (torch.tensor(total), torch.tensor(count))},
        maxima={"ratio": torch.tensor(highest)},
    )


def alone(values: Tensor) -> Tensor:
    return values[None]


def test_micro_batches_add_up() -> None:
    totals = LossTotals()
    totals.add(sums(1.0, 2.0, 4.0, -3.0))
    totals.add(sums(2.0, 4.0, 8.0, -5.0))
    assert totals.means(alone) == (3.0, {"kl": 0.5, "ratio": -3.0})


def test_ranks_add_up() -> None:
    totals = LossTotals()
    totals.add(sums(1.0, 2.0, 4.0, 3.0))

    def with_another_rank(values: Tensor) -> Tensor:
        return torch.stack([values, values * 3])

    assert totals.means(with_another_rank) == (4.0, {"kl": 0.5, "ratio": 9.0})


def test_a_mean_of_nothing_is_zero_and_nan_stays() -> None:
    totals = LossTotals()
    totals.add(sums(math.nan, 0.0, 0.0, -math.inf))
    total, metrics = totals.means(alone)
    assert math.isnan(total)
    assert metrics["kl"] == 0


def test_a_loss_that_changes_its_figures_is_refused() -> None:
    totals = LossTotals()
    totals.add(sums(1.0, 2.0, 4.0, 3.0))
    with pytest.raises(ValueError, match="a loss gave the figures"):
        totals.add(LossSums(torch.tensor(1.0)))
    with pytest.raises(ValueError, match="no micro-batch"):
        LossTotals().means(alone)
