"""`exact-match`: 1 if the response is the answer in the prompt's row, else 0."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollcall_runtime.tasks.builtin_rewards.answer_column import answer_in, answer_needs
from rollcall_runtime.tasks.builtin_rewards.patterns import extractor, last_group
from rollcall_runtime.tasks.reward_registry import NamedReward
from rollcall_runtime.tasks.row_needs import RowNeeds
from rollcall_runtime.worker.engine_config import read_settings


@dataclass(frozen=True, slots=True)
class ExactMatchSettings:
    """The answer is in `column`, or where its parts between dots lead.

    `strip` and `lower_case` change both before they are compared. Of the response the first group
    of the last match of `extract` is compared; without a match the reward is 0. Empty: all of it.
    """

    column: str = "answer"
    strip: bool = True
    lower_case: bool = False
    extract: str = ""

    def __post_init__(self) -> None:
        """ValueError says what is wrong."""
        if not self.column:
            raise ValueError("column must not be empty")
        if self.extract:
            extractor(self.extract, "extract")


class ExactMatch(NamedReward):
    """Compares text with a column of the row."""

    def __init__(self, config: Mapping[str, Any], *, field: str) -> None:
        self._settings = read_settings(ExactMatchSettings, config, field=field)
        extract = self._settings.extract
        self._extract = extractor(extract, "extract") if extract else None

    @classmethod
    def row_needs(cls, config: Mapping[str, Any], *, field: str) -> RowNeeds:
        """The answer must be there, and one that a response can be equal to."""
        return answer_needs(read_settings(ExactMatchSettings, config, field=field).column, field)

    def __call__(
        self,
        prompt: Sequence[int],  # noqa: ARG002 - the interface
        response: Sequence[int],  # noqa: ARG002
        *,
        row: Mapping[str, Any],
        response_text: str,
    ) -> float:
        answer = answer_in(row, self._settings.column)
        extract = self._extract
        found = response_text if extract is None else self._extracted(extract, response_text)
        if found is None:
            return 0.0
        return float(self._alike(found) == self._alike(answer))

    def _extracted(self, pattern: re.Pattern[str], text: str) -> str | None:
        return last_group(pattern, text, within=self.call_seconds)

    def _alike(self, text: str) -> str:
        text = text.strip() if self._settings.strip else text
        return text.lower() if self._settings.lower_case else text
