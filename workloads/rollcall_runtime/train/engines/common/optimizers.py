"""Optimizers by the name that a job gives, and how the learning rate changes step by step."""

import math
from collections.abc import Callable, Iterable, Mapping

from torch import nn
from torch.optim import AdamW, Optimizer

from rollcall_protocol.job_config import OptimizerConfig
from rollcall_protocol.train_settings import MAX_LEARNING_RATE, EngineSettings
from rollcall_runtime.worker.errors import SpecError

FIELD = "spec.algorithm.optimizer"


def check_optimizer(config: OptimizerConfig) -> None:
    """SpecError names the field that is wrong."""
    if config.name not in _OPTIMIZERS:
        known = ", ".join(sorted(_OPTIMIZERS))
        raise SpecError(f"{FIELD}.name", f"unknown optimizer {config.name!r}; known: {known}")
    if not 0 < config.learning_rate <= MAX_LEARNING_RATE:
        problem = f"{config.learning_rate:g} is not above 0 and at most {MAX_LEARNING_RATE:g}"
        raise SpecError(f"{FIELD}.learningRate", problem)


def build_optimizer(
    config: OptimizerConfig, parameters: Iterable[nn.Parameter], settings: EngineSettings
) -> Optimizer:
    """The optimizer over `parameters`; SpecError as `check_optimizer`."""
    check_optimizer(config)
    return _OPTIMIZERS[config.name](config, parameters, settings)


_Builder = Callable[[OptimizerConfig, Iterable[nn.Parameter], EngineSettings], Optimizer]


def _adamw(
    config: OptimizerConfig, parameters: Iterable[nn.Parameter], settings: EngineSettings
) -> Optimizer:
    """Loshchilov and Hutter 2019."""
    return AdamW(
        parameters,
        lr=config.learning_rate,
        betas=(settings.beta1, settings.beta2),
        eps=settings.epsilon,
        weight_decay=settings.weight_decay,
        foreach=True,
    )


_OPTIMIZERS: Mapping[str, _Builder] = {"adamw": _adamw}


def learning_rate_factor(settings: EngineSettings, step: int) -> float:
    """What the learning rate is multiplied by in the optimizer step after `step` others.

    Linear growth over `warmup_steps` reaches 1 in the last of them. Then it stays, or falls over
    `decay_steps` to `min_learning_rate`, along a line or half a cosine wave (Loshchilov and Hutter
    2017).
    """
    if step < settings.warmup_steps:
        return (step + 1) / settings.warmup_steps
    if settings.schedule == "constant":
        return 1.0
    done = min((step - settings.warmup_steps) / settings.decay_steps, 1.0)
    left = 1 - done if settings.schedule == "linear" else (1 + math.cos(math.pi * done)) / 2
    return settings.min_learning_rate + (1 - settings.min_learning_rate) * left
