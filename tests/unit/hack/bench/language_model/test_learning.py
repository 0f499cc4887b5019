"""When a run is said to have learned, or not to have."""

import pytest

from hack.bench.language_model.learning import Learning, Look, verdict


def run(*looks: tuple[int, int, float], task: str = "first-letter", sync: bool = True) -> Learning:
    """Looks as (version, samples, reward)."""
    seen = tuple(
        Look(float(number), number, version, samples, reward)
        for number, (version, samples, reward) in enumerate(looks)
    )
    return Learning(task, 1, sync, seen, (1e-6, 3e-6), (9.0, 11.0, 10.0))


def test_it_begins_with_the_samples_before_the_first_update_and_ends_with_the_last() -> None:
    learning = run((1, 32, 0.1), (1, 96, 0.2), (2, 96, 0.2), (2, 128, 0.3), (9, 640, 0.7))
    assert (learning.start, learning.end) == (0.2, 0.7)
    figures = learning.figures()
    assert figures["moved"] == 0.5
    assert figures["samples"] == 640
    assert figures["step_seconds"] == {"median": 10.0, "max": 11.0}
    assert figures["mismatch_kl"] == {"median": 2e-6, "max": 3e-6}


@pytest.mark.parametrize(
    ("task", "end", "enough"),
    [("first-letter", 0.61, True), ("first-letter", 0.59, False), ("chain-sum", 0.41, True)],
)
def test_it_learned_if_the_reward_rose_by_the_goal(task: str, end: float, enough: bool) -> None:
    assert run((1, 96, 0.2), (9, 640, end), task=task).as_it_should is enough


@pytest.mark.parametrize(("end", "stayed"), [(0.29, True), (0.11, True), (0.31, False)])
def test_without_weight_sync_the_reward_must_stay(end: float, stayed: bool) -> None:
    learning = run((1, 96, 0.5), (3, 256, 0.2), (4, 288, 0.3), (9, 640, end), sync=False)
    assert learning.start == 0.2, "of as many samples as at the end"
    assert learning.as_it_should is stayed


def test_one_run_that_did_not_learn_decides() -> None:
    good, bad = run((1, 96, 0.2), (9, 640, 0.7)), run((1, 96, 0.2), (9, 640, 0.3))
    assert verdict([good])["as_it_should"]
    found = verdict([good, bad])
    assert not found["as_it_should"]
    assert found["runs"][1]["looks"][-1] == [1.0, 1, 9, 640, 0.3]
