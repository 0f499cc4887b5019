"""When the demo of a language model says that it learned."""

from pathlib import Path
from typing import Any

import pytest

from hack.demo.job_progress import JobProgress
from hack.demo.language_model import WORDS, LearningCurve, check_answers, manifest
from rollcall_runtime.tasks.first_letter import WORDS as TRAINED_ON

RIGHT, WRONG = dict.fromkeys(WORDS, 31), dict.fromkeys(WORDS, 6)


def check(*, end: float = 0.95, after: dict[str, int] = RIGHT) -> None:
    last = JobProgress(
        rollouts={"a": {"rollcall_rollout_reward": end}},
        history=[{"epoch": number, "cause": "MembersJoined"} for number in (1, 2, 3)],
    )
    check_answers(start=0.3, last=last, before=WRONG, after=after)


def test_it_learned_if_rewards_rose_and_the_export_answers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    check()
    said = capsys.readouterr().err
    assert "nurse: 6 of 32 answers right before, 31 after" in said
    assert "mean reward of the rollouts' own samples: 0.30, then 0.95" in said
    assert "LEARNED" in said


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"end": 0.6}, "the reward rose by 0.30, not by 0.4"),
        ({"after": WRONG}, "answers of the exported model rose by 0.00"),
    ],
)
def test_it_did_not_learn_otherwise(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(AssertionError, match=problem):
        check(**changes)


def test_the_words_that_are_asked_are_not_trained_on() -> None:
    assert not set(WORDS) & set(TRAINED_ON)


def test_rollouts_go_where_the_image_is() -> None:
    (pool,) = manifest(["node-2"])["spec"]["rollouts"]
    spec = pool["template"]["spec"]
    assert spec["nodeSelector"] == {"kubernetes.io/hostname": "node-2"}
    (pool,) = manifest([])["spec"]["rollouts"]
    assert "nodeSelector" not in pool["template"]["spec"]


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
