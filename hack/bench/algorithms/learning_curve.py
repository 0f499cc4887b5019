"""One run of one algorithm, in a process of its own."""

from collections.abc import Mapping
from typing import Any

from rollcall_protocol.algorithm_settings import preset
from rollcall_runtime.tasks.reverse import RESPONSE_TOKENS
from tests.unit.rollcall_runtime.train.test_learning import learn

STALENESS = 2
# What depends on the task: the longest response.
CHANGES: Mapping[str, Mapping[str, Any]] = {"dr-grpo": {"aggregation_length": RESPONSE_TOKENS}}


def learning_curve(run: tuple[str, int], steps: int) -> list[float]:
    """Mean reward of each step's samples, of an algorithm's name and a seed."""
    name, seed = run
    settings = preset(name, **CHANGES.get(name, {}))
    return learn(staleness=STALENESS, steps=steps, seed=seed, settings=settings).rewards
