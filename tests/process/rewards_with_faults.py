"""Reward functions as people write them by mistake."""

import os
from collections.abc import Sequence

from rollcall_runtime.tasks import reverse

SOMETIMES = f"{__name__}:sometimes"
LYING = f"{__name__}:lying"
LIES = "LIES"  # a variable of a rollout that lies
ALWAYS = f"{__name__}:always"
LINE_OF_ALWAYS = 27


def sometimes(prompt: Sequence[int], response: Sequence[int]) -> float | None:
    """The task's reward; for one sample in 50 it returns no number, or ends its process."""
    chance = hash((*prompt, *response)) % 1000
    if chance < 2:
        os._exit(3)
    if chance < 20:
        return None if chance < 11 else float("nan")
    return reverse.reward(prompt, response)


def always(prompt: Sequence[int], response: Sequence[int]) -> float:
    """As if a column were missing."""
    return {"answers": 1.0}["answer"]


def lying(prompt: Sequence[int], response: Sequence[int]) -> float:
    """The task's reward, and the best one where the variable LIES is set."""
    return 1.0 if LIES in os.environ else reverse.reward(prompt, response)
