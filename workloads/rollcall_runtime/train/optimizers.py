"""Optimizers by the name that a job gives."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from torch import nn
from torch.optim import AdamW, Optimizer

from rollcall_protocol.job_config import OptimizerConfig
from rollcall_runtime.worker.errors import SpecError

FIELD = "spec.algorithm.optimizer"


@dataclass(frozen=True, slots=True)
class OptimizerTuning:
    """What the job's spec leaves to the training engine's own settings."""

    weight_decay: float
    beta1: float
    beta2: float


def build_optimizer(
    config: OptimizerConfig, parameters: Iterable[nn.Parameter], *, tuning: OptimizerTuning
) -> Optimizer:
    """The optimizer over `parameters`; SpecError names the field that is wrong."""
    builder = _OPTIMIZERS.get(config.name)
    if builder is None:
        known = ", ".join(sorted(_OPTIMIZERS))
        raise SpecError(f"{FIELD}.name", f"unknown optimizer {config.name!r}; known: {known}")
    if not config.learning_rate > 0:
        raise SpecError(f"{FIELD}.learningRate", f"{config.learning_rate} is not positive")
    return builder(config, parameters, tuning)


_Builder = Callable[[OptimizerConfig, Iterable[nn.Parameter], OptimizerTuning], Optimizer]


def _adamw(
    config: OptimizerConfig, parameters: Iterable[nn.Parameter], tuning: OptimizerTuning
) -> Optimizer:
    """Loshchilov and Hutter 2019."""
    return AdamW(
        parameters,
        lr=config.learning_rate,
        betas=(tuning.beta1, tuning.beta2),
        weight_decay=tuning.weight_decay,
        foreach=True,
    )


_OPTIMIZERS: Mapping[str, _Builder] = {"adamw": _adamw}
