"""`code`: the share of the row's tests that Python code in the response passes, in a sandbox."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rollcall_plugins.rewards.code.row_tests import tests_of
from rollcall_plugins.rewards.code.sandbox.code_run import (
    Limits,
    SandboxError,
    call_function,
    run_program,
)
from rollcall_runtime.tasks.builtin_rewards.answer_column import columns_of
from rollcall_runtime.tasks.builtin_rewards.patterns import extractor, last_group
from rollcall_runtime.tasks.reward_registry import NamedReward
from rollcall_runtime.tasks.row_needs import RowNeeds
from rollcall_runtime.worker.engine_config import read_settings
from rollcall_runtime.worker.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_BLOCK = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL)


@dataclass(frozen=True, slots=True)
class CodeSettings:
    """The tests are in `column`.

    `extract`: the code is the first group of its last match in the response; without a match the
    reward is 0. Empty: the code is the last block between ```, or all of the response if there is
    none. `seconds` and `memory_mebibytes` bound a program, or all calls of a function. `partial`:
    whether the reward is the share of tests that pass, or 1 only if all do.
    """

    column: str = "tests"
    extract: str = ""
    seconds: int = 5
    memory_mebibytes: int = 512
    partial: bool = False

    def __post_init__(self) -> None:
        """ValueError says what is wrong."""
        if not self.column:
            raise ValueError("column must not be empty")
        if self.extract:
            extractor(self.extract, "extract")
        if not 1 <= self.seconds <= 600:
            raise ValueError("seconds must be from 1 to 600")
        if not 64 <= self.memory_mebibytes <= 65_536:
            raise ValueError("memoryMebibytes must be from 64 to 65536")


class CodeReward(NamedReward):
    """Runs the code without network, files or processes of its own; compares outside of it.

    A test is `{"input": TEXT, "output": TEXT}` for a program, or `{"arguments": [...], "result":
    ...}` for the function that the row's column `function` names. What is expected never enters the
    sandbox, so code cannot pass by looking at it.
    """

    def __init__(self, config: Mapping[str, Any], *, field: str) -> None:
        self._settings = settings = read_settings(CodeSettings, config, field=field)
        self._extract = extractor(settings.extract, "extract") if settings.extract else None
        self._limits = Limits(settings.seconds, settings.memory_mebibytes << 20)
        try:
            works = run_program("print(input())", "1", self._limits).output == b"1\n"
        except SandboxError as error:
            problem = f"this machine cannot isolate code: {error}"
            raise SpecError(
                f"{field.rpartition('.')[0]}.function",
                f"{problem}; it needs Landlock and seccomp, which a container may be denied",
            ) from error
        if not works:
            problem = f"a program that only prints fails with {settings.memory_mebibytes} MiB"
            raise SpecError(f"{field}.memoryMebibytes", f"{problem}; raise it")

    @classmethod
    def row_needs(cls, config: Mapping[str, Any], *, field: str) -> RowNeeds:
        """Each row must have tests that a program can pass."""
        column = read_settings(CodeSettings, config, field=field).column
        return RowNeeds((*columns_of(column), "function"), lambda row: tests_of(row, column), field)

    def __call__(
        self,
        prompt: Sequence[int],  # noqa: ARG002 - the interface
        response: Sequence[int],  # noqa: ARG002
        *,
        row: Mapping[str, Any],
        response_text: str,
    ) -> float:
        tests = tests_of(row, self._settings.column)
        deadline = time.monotonic() + self.call_seconds
        code = self._code(response_text)
        if code is None:
            return 0.0
        if "arguments" in tests[0]:
            passed = self._calls(code, tests, row["function"], deadline)
        else:
            passed = self._programs(code, tests, deadline)
        return passed / len(tests) if self._settings.partial else float(passed == len(tests))

    def _code(self, text: str) -> str | None:
        if self._extract is not None:
            return last_group(self._extract, text, within=self.call_seconds)
        return last_group(_BLOCK, text, within=self.call_seconds) or text

    def _programs(self, code: str, tests: list[dict[str, Any]], deadline: float) -> int:
        passed = 0
        for test in tests:
            left = deadline - time.monotonic()
            if left <= 0:
                break
            run = run_program(code, test["input"], replace(self._limits, within=left))
            right = run.ended_well and _lines(run.output) == _lines(test["output"].encode())
            passed += right
            if not (right or self._settings.partial):
                break
        return passed

    def _calls(self, code: str, tests: list[dict[str, Any]], function: str, deadline: float) -> int:
        calls = [test["arguments"] for test in tests]
        limits = replace(self._limits, within=deadline - time.monotonic())
        results = call_function(code, function, calls, limits)
        return sum(result == test["result"] for result, test in zip(results, tests, strict=False))


def _lines(output: bytes) -> list[bytes]:
    """Without white space at the ends of lines and empty lines at the end."""
    return [line.rstrip() for line in output.rstrip().split(b"\n")]
