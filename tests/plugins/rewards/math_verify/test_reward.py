"""Answers that are equal as mathematics, however they are written, count as right."""

import time
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from rollcall_plugins.rewards.math_verify import reward as math_reward
from rollcall_plugins.rewards.math_verify.reward import MathVerify
from rollcall_runtime.worker.errors import SpecError


@cache  # each has a process that imports SymPy
def made(**config: Any) -> MathVerify:
    return MathVerify(config, field="spec.reward.config")


def score(answer: Any, response: str, **config: Any) -> float:
    reward = made(**config)
    return reward((1,), (1,), row={"answer": answer}, response_text=response)


@pytest.mark.parametrize(
    ("answer", "response", "right"),
    [
        (42, "the answer is 42", True),
        ("42", r"so it is \boxed{42.0}, not 7", True),
        ("42", "43", False),
        ("42", "", False),
        ("1/2", r"\boxed{\frac{1}{2}}", True),
        (r"\frac{1}{2}", "0.5", True),
        ("x^2+1", r"$1 + x^2$", True),
        ("x^2+1", r"$1 - x^2$", False),
        (r"$\sqrt{2}$", r"$2^{1/2}$", True),
    ],
)
def test_equal_answers_are_right(answer: object, response: str, *, right: bool) -> None:
    assert score(answer, response) == float(right)


def test_digits_say_how_close_a_number_must_be() -> None:
    assert score("0.333333", "0.333334", digits=3) == 1
    assert score("0.333333", "0.333334", digits=6) == 0


def test_each_row_has_its_own_answer() -> None:
    reward = made()
    rewards = [reward((), (), row={"answer": n}, response_text="2") for n in (1, 2, 2, 3)]
    assert rewards == [0, 1, 1, 0]


def test_a_row_without_an_answer_is_an_error_of_the_sample() -> None:
    reward = made(column="solution")
    with pytest.raises(ValueError, match="no column 'solution'; it has: answer"):
        reward((1,), (1,), row={"answer": 1}, response_text="1")
    with pytest.raises(ValueError, match="'' in the column 'answer' is no mathematics"):
        score("", "1")


# 9^9^9^9 has more digits than there are atoms, and 20!!! is the factorial of the one of 20!.
@pytest.mark.parametrize("response", [r"\boxed{9^{9^{9^{9}}}}", r"$20!!!$", r"\boxed{1e999999999}"])
def test_a_response_that_cannot_be_computed_has_the_reward_zero(
    monkeypatch: pytest.MonkeyPatch, response: str
) -> None:
    monkeypatch.setattr(math_reward, "SECONDS", 0.5)
    began = time.process_time()
    assert score("42", response) == 0
    assert time.process_time() - began < 0.5  # of this process, which waits
    assert score("42", "42") == 1  # another process has taken the place of that one


def test_an_answer_in_a_row_that_cannot_be_read_in_time_is_an_error_of_the_sample() -> None:
    reward = MathVerify({}, field="spec.reward.config")
    reward.call_seconds = 0
    with pytest.raises(ValueError, match="'42' in the column 'answer' cannot be read"):
        reward((1,), (1,), row={"answer": "42"}, response_text="42")


@pytest.mark.parametrize(
    ("config", "problem"),
    [({"column": ""}, "column must not be empty"), ({"digits": 16}, "digits must be from 0 to 15")],
)
def test_a_wrong_setting_is_refused(config: dict[str, Any], problem: str) -> None:
    with pytest.raises(SpecError, match=rf"^spec.reward.config: {problem}"):
        score("1", "1", **config)


def test_an_image_without_the_package_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "math_verify.py").write_text("raise ImportError('not there')")
    monkeypatch.syspath_prepend(tmp_path)
    problem = r"^spec.reward.function: math-verify cannot be imported: .*; .*rollcall\[rewards\]"
    with pytest.raises(SpecError, match=problem):
        MathVerify({}, field="spec.reward.config")
