"""Advantages say which sample of a group was better than its siblings."""

import pytest
import torch

from rollcall_runtime.train.advantages import group_normalised


def test_each_group_has_mean_zero_and_deviation_one() -> None:
    found = group_normalised([[0.0, 0.5, 1.0, 0.25], [10.0, 20.0]])
    assert found.dtype == torch.float32
    assert float(found[:4].mean()) == pytest.approx(0, abs=1e-6)
    assert float(found[:4].std(correction=0)) == pytest.approx(1, abs=1e-4)
    assert found[4:].tolist() == pytest.approx([-1, 1], abs=1e-4)


@pytest.mark.parametrize("group", [[0.3], [0.0, 0.0, 0.0], [1 / 3, 1 / 3]])
def test_a_group_without_differences_teaches_nothing(group: list[float]) -> None:
    assert group_normalised([group]).tolist() == [0.0] * len(group)
