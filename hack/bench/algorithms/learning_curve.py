"""One run of one algorithm, in a process of its own."""

from rollcall_protocol.algorithm_settings import preset
from tests.unit.rollcall_runtime.train.test_learning import learn

STALENESS = 2


def learning_curve(run: tuple[str, int], steps: int) -> list[float]:
    """Mean reward of each step's samples, of an algorithm's name and a seed."""
    name, seed = run
    return learn(staleness=STALENESS, steps=steps, seed=seed, settings=preset(name)).rewards
