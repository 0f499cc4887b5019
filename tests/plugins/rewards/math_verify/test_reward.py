"""Answers that are equal as mathematics, however they are written, count as right."""

from pathlib import Path
from typing import Any

import pytest

from rollcall_plugins.rewards.math_verify.reward import MathVerify
from rollcall_runtime.worker.errors import SpecError


def score(answer: Any, response: str, **config: Any) -> float:
    reward = MathVerify(config, field="spec.reward.config")
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
    reward = MathVerify({}, field="spec.reward.config")
    rewards = [reward((), (), row={"answer": n}, response_text="2") for n in (1, 2, 2, 3)]
    assert rewards == [0, 1, 1, 0]


def test_a_row_without_an_answer_is_an_error_of_the_sample() -> None:
    reward = MathVerify({"column": "solution"}, field="spec.reward.config")
    with pytest.raises(KeyError, match="no column 'solution'; it has: answer"):
        reward((1,), (1,), row={"answer": 1}, response_text="1")
    with pytest.raises(ValueError, match="'' in the column 'answer' is no mathematics"):
        score("", "1")


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
    monkeypatch.delitem(__import__("sys").modules, "math_verify", raising=False)
    problem = r"^spec.reward.function: math-verify cannot be imported: .*; .*rollcall\[rewards\]"
    with pytest.raises(SpecError, match=problem):
        score("1", "1")
