"""The task's reward; NaN for some samples while a file is there."""

import math
import os
from collections.abc import Sequence
from pathlib import Path

from rollcall_runtime.tasks import reverse

FUNCTION = f"{__name__}:reward"
FILE = "NOT_FINITE_WHILE"  # a variable of the rollouts: the file's path


def reward(prompt: Sequence[int], response: Sequence[int]) -> float:
    """NaN for one sample in 25 while the file is there."""
    if hash((*prompt, *response)) % 25 == 0 and Path(os.environ[FILE]).exists():
        return math.nan
    return reverse.reward(prompt, response)
