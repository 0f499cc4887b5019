"""`reasoning-gym`: what the data set that made the question gives for the answer."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rollcall_protocol.data_config import REASONING_GYM
from rollcall_runtime.tasks import reasoning_gym_task
from rollcall_runtime.tasks.builtin_rewards.patterns import extractor, last_group
from rollcall_runtime.tasks.reward_registry import NamedReward
from rollcall_runtime.worker.engine_config import read_settings
from rollcall_runtime.worker.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rollcall_runtime.tasks.reasoning_gym_task import ReasoningGymTask


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
    """Makes the row's question again, from its number, and has the data set score the answer."""

    def __init__(self, config: Mapping[str, Any], *, field: str) -> None:
        settings = read_settings(ReasoningGymSettings, config, field=field)
        self._extract = extractor(settings.extract, "extract") if settings.extract else None
        self._tasks: dict[str, ReasoningGymTask] = {}  # as many as the job has sources
        try:
            reasoning_gym_task.import_package()
        except ImportError as error:
            problem = f"reasoning-gym cannot be imported: {error}; an image needs rollcall[rewards]"
            raise SpecError(f"{field.rpartition('.')[0]}.function", problem) from error

    def __call__(
        self,
        prompt: Sequence[int],  # noqa: ARG002 - the interface
        response: Sequence[int],  # noqa: ARG002
        *,
        row: Mapping[str, Any],
        response_text: str,
    ) -> float:
        column = reasoning_gym_task.COLUMN
        if column not in row:
            problem = f"the row has no column {column!r}, which {REASONING_GYM}... has"
            raise KeyError(f"{problem}; it has: {', '.join(row) or 'none'}")
        asked = row[column]
        task = self._task(asked["name"], asked["config"])
        if task.entry(asked["number"])["question"] != row.get("question"):
            problem = f"question {asked['number']} of {task.name!r} is another one here"
            raise ValueError(f"{problem}; trainer and rollouts need one release of reasoning-gym")
        if self._extract is None:
            return task.score(asked["number"], response_text.strip())
        return task.score(asked["number"], last_group(self._extract, response_text))

    def _task(self, name: str, config: Mapping[str, Any]) -> ReasoningGymTask:
        key = json.dumps([name, config], sort_keys=True)
        if key not in self._tasks:
            self._tasks[key] = reasoning_gym_task.open_task(name, config)
        return self._tasks[key]
