"""The verdict must not be got cheaply: it fails for every way in which a job did not learn."""

import math

import pytest

from hack.demo.follow import Sight
from hack.demo.verdict import check_epochs, check_learned


def seen(reward: float | None = 0.95, version: float = 99) -> Sight:
    metrics = {"rollcall_weight_version": version}
    if reward is not None:
        metrics["rollcall_rollout_reward"] = reward
    good = {"rollcall_weight_version": 100.0, "rollcall_rollout_reward": 1.0}
    return Sight(version=100, rollouts={"good": good, "other": metrics})


def test_good_samples_with_current_weights_pass() -> None:
    check_learned(seen(), max_staleness=2)


@pytest.mark.parametrize(
    "sight",
    [
        seen(reward=0.89),
        seen(reward=None),
        seen(reward=math.nan),
        seen(version=97),
        Sight(version=100),
    ],
    ids=["low", "missing", "not a number", "stale", "no rollouts"],
)
def test_anything_less_fails(sight: Sight) -> None:
    with pytest.raises(AssertionError):
        check_learned(sight, max_staleness=2)


def test_epochs_need_causes() -> None:
    history = [{"epoch": 1, "cause": "JobStarted"}, {"epoch": 2, "cause": "MemberLost"}]
    check_epochs(Sight(history=history), least=2)
    with pytest.raises(AssertionError):
        check_epochs(Sight(history=history), least=3)
    with pytest.raises(AssertionError):
        check_epochs(Sight(history=[*history, {"epoch": 3, "cause": ""}]), least=3)
