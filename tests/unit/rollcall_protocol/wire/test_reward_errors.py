"""The message of a reward error says function, value, place and prompt."""

import pytest

from rollcall_protocol.wire.reward_errors import (
    MAX_TEXT,
    RewardError,
    RewardErrorKind,
    RewardFailure,
    kind_of_number,
    printable,
)


@pytest.mark.parametrize(
    ("kind", "value", "says"),
    [
        (RewardErrorKind.RAISED, "KeyError: 'a'", "task:score raised KeyError: 'a'"),
        (RewardErrorKind.NOT_FINITE, "nan", "task:score returned nan, which is not finite"),
        (RewardErrorKind.NOT_A_NUMBER, "None", "task:score returned None, which is not a number"),
        (
            RewardErrorKind.TOO_LARGE,
            "2e+06",
            "task:score returned 2e+06, which is not within 1e+06",
        ),
        (RewardErrorKind.TIMED_OUT, "30 s", "task:score did not return within 30 s"),
        (RewardErrorKind.PROCESS_DIED, "exit code 3", "task:score ended its process: exit code 3"),
    ],
)
def test_each_kind_says_what_happened(kind: RewardErrorKind, value: str, says: str) -> None:
    failure = RewardFailure("task:score", RewardError(0, kind, value, "task.py", 12), 7, (0, 4))
    assert failure.message == f"{says} (task.py:12), for prompt 7 (tokens 0 4)"


def test_braces_in_a_value_stay() -> None:
    error = RewardError(0, RewardErrorKind.RAISED, "KeyError: {0}")
    assert RewardFailure("f", error, 0, ()).message.startswith("f raised KeyError: {0}, for prompt")


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (0.5, None),
        (-1e6, None),
        (float("nan"), RewardErrorKind.NOT_FINITE),
        (float("-inf"), RewardErrorKind.NOT_FINITE),
        (1.5e6, RewardErrorKind.TOO_LARGE),
    ],
)
def test_a_usable_number_is_finite_and_not_too_large(
    value: float, kind: RewardErrorKind | None
) -> None:
    assert kind_of_number(value) is kind


def test_a_text_is_shown_on_one_short_line() -> None:
    assert printable("a\nb\x1bc") == "a b c"
    assert len(printable("x" * 1000)) == MAX_TEXT
