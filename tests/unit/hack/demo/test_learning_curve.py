"""The chart that the demo of a language model ends with."""

from pathlib import Path

from hack.demo.job_progress import JobProgress
from hack.demo.learning_curve import LearningCurve


def seen(step: int, epoch: int, **rewards: float) -> JobProgress:
    return JobProgress(
        step=step,
        rollouts={pod: {"rollcall_rollout_reward": reward} for pod, reward in rewards.items()},
        history=[{"epoch": n, "cause": f"Cause{n}"} for n in range(1, epoch + 1)],
    )


def test_each_step_and_each_epoch_is_one_point() -> None:
    curve = LearningCurve()
    for found in (seen(0, 1), seen(1, 1, a=0.3), seen(1, 1, a=0.4), seen(3, 2, a=0.5, b=0.2)):
        curve.add(found)
    assert curve.rewards == {"a": [(1, 0.3), (3, 0.5)], "b": [(3, 0.2)]}
    assert curve.epochs == [(0, "Cause1"), (3, "Cause2")]


def test_the_chart_names_pods_and_causes(tmp_path: Path) -> None:
    curve = LearningCurve()
    curve.add(seen(1, 1, worker=0.3))
    curve.add(seen(2, 2, worker=0.6))
    curve.draw(tmp_path / "results" / "curve.svg", title="It learns")
    text = (tmp_path / "results" / "curve.svg").read_text()
    for words in ("It learns", "worker", "Cause1", "Cause2"):
        assert f"<!-- {words} -->" in text
