"""A reward function that never answers, so that a job stands still with its first version."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

NAME = f"{__name__}:reward"
SECONDS = 24 * 3600.0


def reward(prompt: Sequence[int], response: Sequence[int]) -> float:
    """Takes a day, so that no sample is completed; returns 0."""
    del prompt, response
    time.sleep(SECONDS)
    return 0.0
