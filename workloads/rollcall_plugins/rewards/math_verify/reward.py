"""`math-verify`: 1 if the response's answer equals the row's as mathematics, else 0."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rollcall_runtime.tasks.builtin_rewards.answer_column import answer_in
from rollcall_runtime.tasks.reward_registry import NamedReward
from rollcall_runtime.worker.engine_config import read_settings
from rollcall_runtime.worker.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True)
class MathVerifySettings:
    """The answer is in `column`: a number, an expression, or LaTeX with or without `$`.

    `digits` after the point that must agree.
    """

    column: str = "answer"
    digits: int = 6

    def __post_init__(self) -> None:
        """ValueError says what is wrong."""
        if not self.column:
            raise ValueError("column must not be empty")
        if not 0 <= self.digits <= 15:
            raise ValueError("digits must be from 0 to 15")


class MathVerify(NamedReward):
    r"""Compares by https://github.com/huggingface/Math-Verify, which also finds answers in text.

    It takes the last `\boxed{}`, LaTeX or number of the response. It has no time limit of its own:
    spec.reward.timeoutSeconds holds.
    """

    def __init__(self, config: Mapping[str, Any], *, field: str) -> None:
        self._settings = read_settings(MathVerifySettings, config, field=field)
        try:
            import math_verify  # noqa: PLC0415 - slow, and not in every image
        except ImportError as error:
            problem = f"math-verify cannot be imported: {error}; an image needs rollcall[rewards]"
            raise SpecError(f"{field.rpartition('.')[0]}.function", problem) from error
        logging.getLogger("math_verify").setLevel(logging.ERROR)  # of limits that are not set
        self._parse, self._verify = math_verify.parse, math_verify.verify
        self._gold: tuple[str, list[Any]] | None = None  # of the newest row: a group has one

    def __call__(
        self,
        prompt: Sequence[int],  # noqa: ARG002 - the interface
        response: Sequence[int],  # noqa: ARG002
        *,
        row: Mapping[str, Any],
        response_text: str,
    ) -> float:
        gold = self._gold_of(answer_in(row, self._settings.column))
        found = self._parse(response_text, parsing_timeout=None)
        same = self._verify(gold, found, float_rounding=self._settings.digits, timeout_seconds=None)
        return float(same)

    def _gold_of(self, text: str) -> list[Any]:
        if self._gold is None or self._gold[0] != text:
            # LaTeX is recognised between signs only, a number also without.
            parsed = self._parse(text, parsing_timeout=None) or self._parse(
                f"${text}$", parsing_timeout=None
            )
            if not parsed:
                column = self._settings.column
                raise ValueError(f"{text!r} in the column {column!r} is no mathematics")
            self._gold = text, parsed
        return self._gold[1]
