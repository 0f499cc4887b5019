"""The verdict on a job with a liar: each thing that must hold is missed when it does not."""

import json
from dataclasses import replace

import pytest

from hack.liar.lying_worker import LieKind
from hack.liar.verdict import LiarHistory, LiarLife, figures, violations


def life(*, out: float | None = 104.0, paused: float = 0.0) -> LiarLife:
    """A liar that replayed completions, then lied about two, and was out after 4 s."""
    made = LiarLife(LieKind.REPLAYS, cause="BadMessages", out=out, paused=paused)
    made.read(
        [
            json.dumps(line)
            for line in (
                {"time": 90.0, "what": "lie", "kind": "replays", "detail": ""},
                {
                    "time": 90.1,
                    "what": "answer",
                    "lease": "1",
                    "false": False,
                    "outcome": "counted",
                },
                {
                    "time": 90.2,
                    "what": "answer",
                    "lease": "1",
                    "false": False,
                    "outcome": "dropped",
                },
                {"time": 100.0, "what": "lie", "kind": "bad-completions", "detail": "no_samples"},
                {
                    "time": 100.1,
                    "what": "answer",
                    "lease": "2",
                    "false": True,
                    "outcome": "refused",
                },
                {"time": 101.0, "what": "lie", "kind": "bad-completions", "detail": "no_samples"},
            )
        ]
    )
    return made


def history(*lives: LiarLife) -> LiarHistory:
    return LiarHistory(
        lives=lives or (life(),),
        rewards={"a": 0.95, "b": 0.99},
        trained=(0.0, 1.0),
        distrusted=(),
        balanced=True,
        weights_problem="",
        tracebacks=(),
    )


def test_a_job_that_learns_beside_a_liar_violates_nothing() -> None:
    assert violations(history()) == []


def test_the_time_counts_from_the_first_lie_that_excludes() -> None:
    assert life().seconds == 4.0
    assert life(out=None).seconds is None
    found = figures(history(life(), life(out=106.0)))
    assert found["liars"]["replays"] == {
        "liars": 2,
        "lies": 6,
        "out_seconds": [5.0, 6.0],
        "causes": ["BadMessages"],
    }
    assert found["completions_of_liars"] == {
        "other counted": 2,
        "other dropped": 2,
        "false refused": 2,
    }


def test_the_time_in_which_no_trainer_runs_does_not_count() -> None:
    slow = life(out=115.0)
    assert violations(history(slow)) == ["liar 0 (replays) was out after 15.0 s"]
    slow.paused = 6.0
    assert violations(history(slow)) == []


def test_a_liar_that_stays_or_does_not_lie_is_a_violation() -> None:
    assert violations(history(life(out=None))) == ["liar 0 (replays) was not excluded"]
    silent = LiarLife(LieKind.SILENCE, out=3.0)
    assert violations(history(silent)) == ["liar 0 (silence) did not lie so that it is excluded"]


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (("9", True, "counted"), "a lie about lease 9 was counted"),
        (("1", False, "counted"), "lease 1 was counted twice"),
    ],
)
def test_a_lie_that_counts_is_a_violation(answer: tuple[str, bool, str], problem: str) -> None:
    liar = life()
    liar.answers.append(answer)
    assert violations(history(liar)) == [problem]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"rewards": {"a": 0.5}}, "the honest rollout a has a reward of 0.50"),
        ({"rewards": {}}, "no honest rollout is left"),
        ({"trained": (0.0, 7.0)}, "samples with rewards from 0 to 7 were trained on"),
        ({"balanced": False}, "the counters of prompts do not add up"),
        ({"distrusted": ("a",)}, "honest rollouts were excluded for good: ['a']"),
        ({"weights_problem": "weights of x differ"}, "weights of x differ"),
        ({"tracebacks": ("a: Oh",)}, "an honest worker logged a traceback: a: Oh"),
    ],
)
def test_harm_to_others_is_a_violation(change: dict[str, object], problem: str) -> None:
    assert violations(replace(history(), **change)) == [problem]  # type: ignore[arg-type]
