"""`math-verify`: 1 if the response's answer equals the row's as mathematics, else 0."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rollcall_runtime.tasks.builtin_rewards.answer_column import answer_in, answer_needs
from rollcall_runtime.tasks.reward_registry import NamedReward
from rollcall_runtime.worker.bounded_worker import (
    BoundedCallError,
    BoundedWorker,
    OutOfBoundsError,
)
from rollcall_runtime.worker.engine_config import read_settings
from rollcall_runtime.worker.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rollcall_runtime.tasks.row_needs import RowNeeds

log = logging.getLogger(__name__)

SECONDS = 5.0  # of processor time for one response; Math-Verify's own limit, which it cannot keep
MEMORY = 1 << 30  # bytes
_MODULE = "rollcall_plugins.rewards.math_verify.equality"


@dataclass(frozen=True, slots=True)
class MathVerifySettings:
    """The answer is in `column`, or where its parts between dots lead.

    It is a number, an expression, or LaTeX with or without `$`. `digits` after the point that must
    agree.
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

    It takes the last `\boxed{}`, LaTeX or number of the response. What cannot be computed within
    SECONDS of processor time and MEMORY bytes is not equal.
    """

    def __init__(self, config: Mapping[str, Any], *, field: str) -> None:
        self._settings = read_settings(MathVerifySettings, config, field=field)
        try:
            self._worker = BoundedWorker(_MODULE, memory=MEMORY)
        except ImportError as error:
            problem = f"math-verify cannot be imported: {error}; an image needs rollcall[rewards]"
            raise SpecError(f"{field.rpartition('.')[0]}.function", problem) from error
        self._readable: str | None = None  # the newest answer: a group has one

    @classmethod
    def row_needs(cls, config: Mapping[str, Any], *, field: str) -> RowNeeds:
        """Whether the answer is mathematics shows in the rollouts, which have Math-Verify."""
        return answer_needs(read_settings(MathVerifySettings, config, field=field).column, field)

    def __call__(
        self,
        prompt: Sequence[int],  # noqa: ARG002 - the interface
        response: Sequence[int],  # noqa: ARG002
        *,
        row: Mapping[str, Any],
        response_text: str,
    ) -> float:
        answer = answer_in(row, self._settings.column)
        self._check(answer)
        asked = (answer, response_text, self._settings.digits)
        try:
            return float(self._call("equal", *asked))
        except (OutOfBoundsError, BoundedCallError) as error:
            log.warning("a response is not equal to the answer %.60r: %s", answer, error)
            return 0.0

    def _check(self, answer: str) -> None:
        """ValueError if the row's answer cannot be read."""
        if answer == self._readable:
            return
        where = f"{answer!r:.60} in the column {self._settings.column!r}"
        try:
            known = self._call("is_mathematics", answer)
        except (OutOfBoundsError, BoundedCallError) as error:
            raise ValueError(f"{where} cannot be read: {error}") from error
        if not known:
            raise ValueError(f"{where} is no mathematics")
        self._readable = answer

    def _call(self, function: str, *arguments: Any) -> Any:
        within = self.call_seconds / 2
        return self._worker.call(function, *arguments, seconds=SECONDS, within=within)
