"""The learning rate from step to step, written out."""

import math
from typing import Any

import pytest

from rollcall_protocol.train_settings import EngineSettings
from rollcall_runtime.train.engines.common.learning_rate_schedule import learning_rate_factor


@pytest.mark.parametrize(
    ("settings", "factors"),
    [
        ({}, [1, 1, 1]),
        ({"warmup_steps": 4}, [0.25, 0.5, 0.75, 1, 1, 1]),
        ({"schedule": "linear", "decay_steps": 4}, [1, 0.75, 0.5, 0.25, 0, 0]),
        (
            {
                "schedule": "linear",
                "warmup_steps": 2,
                "decay_steps": 2,
                "min_learning_rate": 0.5,
            },
            [0.5, 1, 1, 0.75, 0.5, 0.5],
        ),
        (
            {"schedule": "cosine", "decay_steps": 4, "min_learning_rate": 0.1},
            [1, 0.1 + 0.45 * (1 + math.sqrt(0.5)), 0.55, 0.1 + 0.45 * (1 - math.sqrt(0.5)), 0.1],
        ),
    ],
)
def test_factors(settings: dict[str, Any], factors: list[float]) -> None:
    found = [learning_rate_factor(EngineSettings(**settings), n) for n in range(len(factors))]
    assert found == pytest.approx(factors)
