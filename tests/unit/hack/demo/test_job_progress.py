"""What a watcher of a job prints beside its progress."""

import itertools
from typing import TYPE_CHECKING, Any, cast

from hack.demo.job_progress import JobProgress, Pace, read_progress

if TYPE_CHECKING:
    from hack.cluster.kubectl import Kubectl


def running(step: int) -> JobProgress:
    return JobProgress(phase="Running", step=step, max_steps=40)


def test_the_pace_is_that_since_the_first_step_that_was_seen() -> None:
    pace = Pace()
    assert pace.words(running(0), now=0) == ""  # set-up is no step
    assert pace.words(running(2), now=100) == ""
    assert pace.words(running(2), now=130) == ""
    assert pace.words(running(12), now=160) == "  10.0 steps/min, 3 min left"
    assert pace.words(running(32), now=280) == "  10.0 steps/min, 48 s left"


def test_a_job_that_does_not_run_has_no_pace() -> None:
    pace = Pace()
    pace.words(running(1), now=0)
    assert pace.words(JobProgress(phase="Suspended", step=9, max_steps=40), now=60) == ""


class TrainingJob:
    """A job that makes a step, and sends a version to its rollouts, between any two readings."""

    def __init__(self) -> None:
        self._versions = itertools.count(1)

    def job(self, name: str) -> Any:
        assert name == "j"
        return {"spec": {"algorithm": {"maxSteps": 40}}}

    def rollouts(self, _name: str) -> Any:
        return [{"metadata": {"name": f"rollout-{number}"}, "status": {}} for number in range(3)]

    def metrics(self, _pod: str) -> dict[str, float]:
        return {"rollcall_weight_version": next(self._versions)}


def test_a_rollout_is_not_behind_because_it_was_read_before_the_trainer() -> None:
    seen = read_progress(cast("Kubectl", TrainingJob()), "j")
    versions = [metrics["rollcall_weight_version"] for metrics in seen.rollouts.values()]
    assert len(versions) == 3
    assert min(versions) >= seen.version
