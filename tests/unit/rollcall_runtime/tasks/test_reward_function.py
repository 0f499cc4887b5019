"""A reward function is named in the job; whatever is wrong with it is said of that field."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollcall_protocol.wire.reward_errors import RewardErrorKind
from rollcall_runtime.tasks.reward_function import UnusableRewardError, load_reward
from rollcall_runtime.worker.errors import SpecError


@pytest.fixture
def user_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module of the user's, importable under the name returned."""
    (tmp_path / "users_rewards.py").write_text(
        "class Verifier:\n"
        "    @staticmethod\n"
        "    def score(prompt, response): return len(response)\n"
        "def nan(prompt, response): return float('nan')\n"
        "def text(prompt, response): return 'good'\n"
        "def broken(prompt, response): return response[99]\n"
        "def by_answer(prompt, response, *, row): return float(row['answer'] == len(response))\n"
        "threshold = 3\n",
        encoding="utf-8",
    )
    (tmp_path / "users_broken.py").write_text("raise KeyError('secret key')\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield "users_rewards"
    for name in ("users_rewards", "users_broken"):
        sys.modules.pop(name, None)


def test_the_built_in_task_has_its_reward() -> None:
    reward = load_reward("rollcall_runtime.tasks.reverse:reward")
    assert reward((0, 3, 4, 1), (4, 3, 2)) == 1.0


def test_a_dotted_name_leads_into_a_class(user_module: str) -> None:
    reward = load_reward(f"{user_module}:Verifier.score")
    assert reward((1,), (5, 5)) == 2.0


def test_the_row_goes_to_a_function_that_has_a_parameter_of_that_name(user_module: str) -> None:
    reward = load_reward(f"{user_module}:by_answer")
    assert reward((1,), (5, 5), {"answer": 2}) == 1.0
    assert reward((1,), (5,), {"answer": 2}) == 0.0
    other = load_reward(f"{user_module}:Verifier.score")
    assert other((1,), (5,), {"answer": 2}) == 1.0


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("exact-mach", "unknown reward 'exact-mach' (did you mean 'exact-match'?)"),
        (":reward", "not of the form module:callable"),
        ("no_such_thing.x:f", "cannot import 'no_such_thing.x': ModuleNotFoundError"),
        ("users_broken:f", "cannot import 'users_broken': KeyError: 'secret key'"),
        ("users_rewards:scores", "module 'users_rewards' has no 'scores'"),
        ("users_rewards:threshold", "'users_rewards:threshold' is a int, not a function"),
    ],
)
def test_a_name_that_leads_nowhere_is_refused(
    user_module: str, function: str, message: str
) -> None:
    with pytest.raises(SpecError, match=f"^spec.reward.function: .*{re.escape(message)}"):
        load_reward(function)


def test_the_import_error_is_kept() -> None:
    with pytest.raises(SpecError) as caught:
        load_reward("no_such_thing:f")
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)


def test_an_error_of_a_call_says_what_and_where(user_module: str) -> None:
    reward = load_reward(f"{user_module}:broken")
    with pytest.raises(UnusableRewardError) as unusable:
        reward((0,), (1, 2))
    error = unusable.value
    assert (error.kind, error.value) == (
        RewardErrorKind.RAISED,
        "IndexError: tuple index out of range",
    )
    assert (error.file, error.line) == ("users_rewards.py", 6)
    assert isinstance(error.__cause__, IndexError)


def test_a_builtin_is_called_without_a_row() -> None:
    assert load_reward("builtins:max").file == ""


def test_a_class_is_called_as_its_instances_are_made(user_module: str) -> None:
    with pytest.raises(SpecError, match=r"cannot be called as \(prompt, response\)"):
        load_reward(f"{user_module}:Verifier")
