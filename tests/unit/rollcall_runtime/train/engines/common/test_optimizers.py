"""Optimizers by name."""

import pytest
import torch
from torch import nn

from rollcall_protocol.job_config import OptimizerConfig
from rollcall_protocol.train_settings import EngineSettings
from rollcall_runtime.train.engines.common.optimizers import build_optimizer
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
