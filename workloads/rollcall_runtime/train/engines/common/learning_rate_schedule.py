"""How the learning rate changes from step to step."""

import math

from rollcall_protocol.train_settings import EngineSettings


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
