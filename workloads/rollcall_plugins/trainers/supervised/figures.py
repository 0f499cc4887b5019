"""The figures of one step of supervised training, for logs and tracking."""

import math

from rollcall_plugins.trainers.supervised.training import SupervisedStep


def supervised_figures(step: SupervisedStep) -> dict[str, float]:
    """What a step of supervised training measured; what is not finite is left out."""
    figures = {
        "train/loss": step.loss,
        "train/grad_norm": step.gradient_norm,
        "train/lr": step.learning_rate,
        "train/tokens": float(step.tokens),
        "timing_s/step": step.seconds,
    }
    if step.evaluation_loss is not None:
        figures["val/loss"] = step.evaluation_loss
    return {name: value for name, value in figures.items() if math.isfinite(value)}
