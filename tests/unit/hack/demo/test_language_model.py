"""When the demo of a language model says that it learned."""

from typing import Any

import pytest

from hack.demo.job_progress import JobProgress
from hack.demo.language_model import WORDS, check_answers, manifest
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
