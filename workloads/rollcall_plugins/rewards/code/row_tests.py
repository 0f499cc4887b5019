"""The tests of a row of the data, which code in a response has to pass."""

from __future__ import annotations

from keyword import iskeyword
from typing import TYPE_CHECKING, Any

from rollcall_runtime.tasks.builtin_rewards.answer_column import shown, value_at

if TYPE_CHECKING:
    from collections.abc import Mapping

MOST = 100


def tests_of(row: Mapping[str, Any], column: str) -> list[dict[str, Any]]:
    """All of one kind; see CodeReward. ValueError if no code can pass them."""
    tests = value_at(row, column)
    if not isinstance(tests, list) or not 1 <= len(tests) <= MOST:
        problem = f"the row's column {column!r} must hold a list of 1 to {MOST}"
        raise ValueError(f"{problem}, not {shown(tests)}")
    if all(_has(test, "input", "output") for test in tests):
        _check(tests, column, {"input": str, "output": str}, "a text")
        return tests
    if all(_has(test, "arguments", "result") for test in tests):
        _check(tests, column, {"arguments": list}, "a list")
        function = row.get("function")
        if not isinstance(function, str) or not function.isidentifier() or iskeyword(function):
            raise ValueError(f"the row's column 'function' must name one, not {shown(function)}")
        return tests
    raise ValueError(
        f"all tests in the row's column {column!r} must have input and output, or arguments and "
        "result"
    )


def _has(test: Any, *keys: str) -> bool:
    return isinstance(test, dict) and test.keys() >= set(keys)


def _check(tests: list[dict[str, Any]], column: str, kinds: dict[str, type], wanted: str) -> None:
    for number, test in enumerate(tests, start=1):
        for key, kind in kinds.items():
            if not isinstance(test[key], kind):
                where = f"{key} of test {number} in the row's column {column!r}"
                raise ValueError(  # noqa: TRY004 - data, and no argument
                    f"{where} must be {wanted}, not {shown(test[key])}"
                )
