"""Optimizers by name, and the learning rate of each step."""

import math
from typing import Any

import pytest
import torch
from torch import nn

from rollcall_protocol.job_config import OptimizerConfig
from rollcall_protocol.train_settings import EngineSettings
from rollcall_runtime.train.engines.common.optimizers import build_optimizer, learning_rate_factor
from rollcall_runtime.worker.errors import SpecError

SETTINGS = EngineSettings(weight_decay=0.1, beta1=0.8, beta2=0.9, epsilon=1e-6)


def test_adamw_gets_its_settings() -> None:
    parameter = nn.Parameter(torch.ones(2))
    optimizer = build_optimizer(OptimizerConfig("adamw", 0.01), [parameter], SETTINGS)
    group = optimizer.param_groups[0]
    assert type(optimizer) is torch.optim.AdamW
    assert (group["lr"], group["betas"], group["weight_decay"]) == (0.01, (0.8, 0.9), 0.1)
    assert group["eps"] == 1e-6


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (OptimizerConfig("sgdd", 0.1), "optimizer.name: unknown optimizer 'sgdd'; known: adamw"),
        (OptimizerConfig("adamw", 0.0), "optimizer.learningRate: 0 is not above 0"),
        (OptimizerConfig("adamw", float("nan")), "optimizer.learningRate: nan is not above 0"),
        (OptimizerConfig("adamw", 1e9), "optimizer.learningRate: 1e+09 is not above 0"),
    ],
)
def test_a_wrong_optimizer_names_its_field(config: OptimizerConfig, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        build_optimizer(config, [], SETTINGS)
    assert str(caught.value).startswith(f"spec.algorithm.{message}")


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
