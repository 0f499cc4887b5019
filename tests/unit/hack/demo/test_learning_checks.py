"""The verdict must not be got cheaply: it fails for every way in which a job did not learn."""

import math

import pytest

from hack.demo.job_progress import JobProgress
from hack.demo.learning_checks import check_epochs, check_learned


def seen(reward: float | None = 0.95, version: float = 99) -> JobProgress:
    metrics = {"rollcall_weight_version": version}
    if reward is not None:
        metrics["rollcall_rollout_reward"] = reward
    good = {"rollcall_weight_version": 100.0, "rollcall_rollout_reward": 1.0}
    return JobProgress(version=100, rollouts={"good": good, "other": metrics})


def test_good_samples_with_current_weights_pass() -> None:
    check_learned(seen(), max_staleness=2)


@pytest.mark.parametrize(
    "seen",
    [
        seen(reward=0.89),
        seen(reward=None),
        seen(reward=math.nan),
        seen(version=97),
        JobProgress(version=100),
    ],
    ids=["low", "missing", "not a number", "stale", "no rollouts"],
)
def test_anything_less_fails(seen: JobProgress) -> None:
    with pytest.raises(AssertionError):
        check_learned(seen, max_staleness=2)


def test_epochs_need_causes() -> None:
    history = [{"epoch": 1, "cause": "JobStarted"}, {"epoch": 2, "cause": "MemberLost"}]
    check_epochs(JobProgress(history=history), least=2)
    with pytest.raises(AssertionError):
        check_epochs(JobProgress(history=history), least=3)
    with pytest.raises(AssertionError):
        check_epochs(JobProgress(history=[*history, {"epoch": 3, "cause": ""}]), least=3)
