"""What is said of asynchronous beside synchronous runs."""

from typing import Any

import pytest

from hack.bench.asynchronous_training import compare, steps_to


def run(side: str, *, rate: float, reward: float) -> dict[str, Any]:
    return {"side": side, "seed": 0, "steps_per_hour": rate, "final_reward": reward}


def runs(rates: list[tuple[float, float]], rewards: tuple[float, float]) -> list[dict[str, Any]]:
    """Of each seed the synchronous and the asynchronous run."""
    return [
        run(side, rate=rate, reward=reward)
        for pair in rates
        for side, rate, reward in zip(("synchronous", "asynchronous"), pair, rewards, strict=True)
    ]


def test_each_seeds_runs_are_compared_with_each_other() -> None:
    found = compare(runs([(100.0, 160.0), (50.0, 90.0), (100.0, 140.0)], (0.99, 0.99)))
    assert found["steps_per_hour_ratio"] == {"median": 1.6, "least": 1.4, "most": 1.8}
    assert found["sides"]["synchronous"]["steps_per_hour"] == 100
    assert found["reached"]


@pytest.mark.parametrize(
    ("rate", "reward"), [(149.0, 0.99), (160.0, 0.97)], ids=["slow", "less reward"]
)
def test_the_goal_is_speed_at_no_less_reward(rate: float, reward: float) -> None:
    assert not compare(runs([(100.0, rate)], (0.99, reward)))["reached"]


def test_steps_are_counted_from_one() -> None:
    assert steps_to([0.1, 0.5, 0.9, 1.0], 0.9) == 3
    assert steps_to([0.1], 0.9) is None
