"""`reasoning-gym`: what the data set that made the question gives for the answer."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rollcall_protocol.data_config import REASONING_GYM
from rollcall_runtime.tasks import reasoning_gym_task
from rollcall_runtime.tasks.builtin_rewards.answer_column import shown
from rollcall_runtime.tasks.builtin_rewards.patterns import extractor, last_group
from rollcall_runtime.tasks.reward_registry import NamedReward
from rollcall_runtime.tasks.row_needs import RowNeeds
from rollcall_runtime.worker.bounded_worker import (
    BoundedCallError,
    BoundedWorker,
    OutOfBoundsError,
)
from rollcall_runtime.worker.engine_config import read_settings
from rollcall_runtime.worker.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

log = logging.getLogger(__name__)

SECONDS, OPENING = 5.0, 60.0  # of processor time: to score an answer, to make the questions
MEMORY = 2 << 30  # bytes
_MODULE = "rollcall_plugins.rewards.reasoning_gym.scoring"


@dataclass(frozen=True, slots=True)
class ReasoningGymSettings:
    """The first group of the last match of `extract` in the response is the answer.

    Empty: all of the response, without white space at its ends. Without a match the data set
    scores that there is no answer.
    """

    extract: str = ""

    def __post_init__(self) -> None:
        """ValueError says what is wrong."""
        if self.extract:
            extractor(self.extract, "extract")


class ReasoningGymScore(NamedReward):
    """Makes the row's question again, from its number, and has the data set score the answer.

    An answer that the data set cannot score within SECONDS of processor time and MEMORY bytes has
    the reward 0, and so has one at which its rule raises an error.
    """

    def __init__(self, config: Mapping[str, Any], *, field: str) -> None:
        settings = read_settings(ReasoningGymSettings, config, field=field)
        self._extract = extractor(settings.extract, "extract") if settings.extract else None
        try:
            self._worker = BoundedWorker(_MODULE, memory=MEMORY)
        except ImportError as error:
            problem = f"reasoning-gym cannot be imported: {error}; an image needs rollcall[rewards]"
            raise SpecError(f"{field.rpartition('.')[0]}.function", problem) from error

    @classmethod
    def row_needs(cls, config: Mapping[str, Any], *, field: str) -> RowNeeds:
        """The rows must be those of builtin:reasoning-gym/..., with their question."""
        read_settings(ReasoningGymSettings, config, field=field)
        return RowNeeds((reasoning_gym_task.COLUMN, "question"), _check_row, field)

    def __call__(
        self,
        prompt: Sequence[int],  # noqa: ARG002 - the interface
        response: Sequence[int],  # noqa: ARG002
        *,
        row: Mapping[str, Any],
        response_text: str,
    ) -> float:
        _check_row(row)
        asked, within = row[reasoning_gym_task.COLUMN], self.call_seconds / 3
        question = (asked["name"], asked["config"], asked["number"])
        try:
            self._worker.call("check", *question, row["question"], seconds=OPENING, within=within)
        except (OutOfBoundsError, BoundedCallError) as error:
            raise ValueError(f"question {question[2]} of {question[0]!r}: {error}") from error
        answer: str | None = response_text.strip()
        if self._extract is not None:
            answer = last_group(self._extract, response_text, within=within)
        try:
            return float(
                self._worker.call("score", *question, answer, seconds=SECONDS, within=within)
            )
        except (OutOfBoundsError, BoundedCallError) as error:
            log.warning("%r cannot score a response, which gets 0: %s", question[0], error)
            return 0.0


def _check_row(row: Mapping[str, Any]) -> None:
    """ValueError unless it names a question of a data set, as `ReasoningGymTask.row` does."""
    for column in (reasoning_gym_task.COLUMN, "question"):
        if column not in row:
            problem = f"the row has no column {column!r}, which {REASONING_GYM}... has"
            raise ValueError(f"{problem}; it has: {', '.join(row) or 'none'}")
    asked = row[reasoning_gym_task.COLUMN]
    kinds = {"name": str, "config": dict, "number": int}
    if not isinstance(asked, dict) or any(
        not isinstance(asked.get(key), kind) for key, kind in kinds.items()
    ):
        problem = f"{reasoning_gym_task.COLUMN!r} holds {shown(asked)}"
        raise ValueError(f"{problem}; it must be as {REASONING_GYM}... makes it")
