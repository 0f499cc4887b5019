"""Sides that do not compute the same are no comparison."""

import math

import pytest

from hack.bench.training.comparison import expect_same_losses, spread
from hack.bench.training.side_processes import SideStep


def steps(*losses: float) -> list[SideStep]:
    return [SideStep(seconds=1.0, cpu_seconds=1.0, loss=loss) for loss in losses]


def test_losses_may_differ_by_rounding() -> None:
    expect_same_losses({"one": steps(9.0, 8.0), "other": steps(9.0, 8.0004)}, tolerance=1e-4)


@pytest.mark.parametrize("loss", [8.01, 7.99, math.nan])
def test_another_loss_at_any_step_is_an_error(loss: float) -> None:
    sides = {"one": steps(9.0, 8.0), "other": steps(9.0, loss)}
    with pytest.raises(RuntimeError, match=r"step 1: .*'one': 8.0, 'other'"):
        expect_same_losses(sides, tolerance=1e-4)


def test_a_spread_has_the_median_and_both_ends() -> None:
    assert spread([3.0, 1.0, 2.0, 9.0]) == {"median": 2.5, "min": 1.0, "max": 9.0}
