"""Calls the user's reward function for this worker, in a process of its own.

`rollcall_runtime.tasks.reward_child` is the process's side.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from rollcall_protocol.job_config import RewardPart, RewardStyle
from rollcall_protocol.wire.reward_errors import (
    RewardError,
    RewardErrorKind,
    kind_of_number,
    printable,
)
from rollcall_runtime.tasks.reward_function import FIELD
from rollcall_runtime.tasks.reward_text import ResponseText
from rollcall_runtime.tasks.user_process import ProcessDiedError, UserCode, UserProcess
from rollcall_runtime.worker.container_memory import free_memory
from rollcall_runtime.worker.errors import SpecError

log = logging.getLogger(__name__)

_NO_CONFIG: Mapping[str, Any] = MappingProxyType({})
_TEXT = ResponseText()


class SummedReward(float):
    """A reward that is a sum; `parts` are their numbers without weights, in the job's order."""

    parts: tuple[float, ...] = ()

    @classmethod
    def of(cls, reward: float, parts: Sequence[float]) -> "SummedReward":
        """The sum with its parts."""
        made = cls(reward)
        made.parts = tuple(parts)
        return made


Score = float | RewardError
OfParts = Callable[[Mapping[str, float]], None]
MAX_ANSWER = 1 << 16  # bytes


class RewardScorer(Protocol):
    """Scores the responses of prompts."""

    async def score(
        self,
        prompt: Sequence[int],
        responses: Sequence[Sequence[int]],
        row: Mapping[str, Any],
        environment_rewards: Sequence[float] = (),
    ) -> list[Score]:
        """A reward or an error for each response; fewer if the rest is not worth scoring.

        `environment_rewards` has a number for each response, or none if they are all 0.
        """


class RewardProcess:
    """Scores responses, one after the other, each within `timeout` seconds.

    With `stop_at_error` the responses after the first error of a prompt are not scored. A process
    that ended or was killed is started again for the next response. It may allocate half of what
    `free` bytes say that the container has left when it starts. `config` are the settings of a
    function that has a name, `style` is how another one is called, `parts` stand in its place;
    `directory` has the model's tokenizer, `text` says what of a response its text has.
    `of_parts` gets the numbers of the parts of each sample that has a reward.
    """

    def __init__(
        self,
        function: str,
        *,
        timeout: float,
        stop_at_error: bool,
        free: Callable[[], int | None] = free_memory,
        config: Mapping[str, Any] = _NO_CONFIG,
        parts: Sequence[RewardPart] = (),
        directory: Path | None = None,
        style: RewardStyle = RewardStyle.ROLLCALL,
        text: ResponseText = _TEXT,
        of_parts: OfParts = lambda _: None,
    ) -> None:
        self._of_parts, self._part_names = of_parts, [part.name for part in parts]
        self._code = UserCode(
            "rollcall_runtime.tasks.reward_child",
            named=named(
                function, config, parts, directory, seconds=timeout, style=style, text=text
            ),
            shown=function or ", ".join(part.function for part in parts),
            field=FIELD,
            max_answer=MAX_ANSWER,
        )
        self._timeout, self._stop_at_error, self._free = timeout, stop_at_error, free
        self._running: UserProcess | None = None

    @property
    def pid(self) -> int | None:
        """Of the process; None while there is none."""
        return self._running.process.pid if self._running is not None else None

    async def start(self) -> None:
        """Start the process; SpecError if it cannot load the function."""
        await self._started()

    async def score(
        self,
        prompt: Sequence[int],
        responses: Sequence[Sequence[int]],
        row: Mapping[str, Any],
        environment_rewards: Sequence[float] = (),
    ) -> list[Score]:
        """A reward or an error for each response; see RewardScorer."""
        gained = environment_rewards or [0.0] * len(responses)
        samples = list(zip(responses, gained, strict=True))
        scores: list[Score] = []
        while len(scores) < len(samples):
            rest = samples[len(scores) :]
            scores += await self._score_until_killed(prompt, rest, row, first=len(scores))
            if self._stop_at_error and isinstance(scores[-1], RewardError):
                break
        return scores

    async def close(self) -> None:
        """Kill the process, if one runs; `score` would start another."""
        running, self._running = self._running, None
        if running is not None:
            await running.kill()

    async def _score_until_killed(
        self,
        prompt: Sequence[int],
        samples: Sequence[tuple[Sequence[int], float]],
        row: Mapping[str, Any],
        *,
        first: int,
    ) -> list[Score]:
        """At least one score; the last one is the error of a process that had to be ended."""
        scores: list[Score] = []
        file, line = "", 0
        try:
            running = await self._started()
            file, line = running.file, running.line
            running.send(request(prompt, samples, row, stop=self._stop_at_error))
            for sample in range(first, first + len(samples)):
                async with asyncio.timeout(self._timeout):
                    answer = await running.answer()
                score = _score(answer, sample)
                if self._part_names and not isinstance(score, RewardError):
                    numbers = _parts(answer, self._part_names)
                    self._of_parts(numbers)
                    score = SummedReward.of(score, list(numbers.values()))
                scores.append(score)
                if self._stop_at_error and isinstance(scores[-1], RewardError):
                    break
        except (TimeoutError, ProcessDiedError, SpecError) as error:
            await self.close()
            timed_out = isinstance(error, TimeoutError)
            kind = RewardErrorKind.TIMED_OUT if timed_out else RewardErrorKind.PROCESS_DIED
            value = f"{self._timeout:g} s" if timed_out else printable(str(error))
            log.warning("the reward process is started again: %s: %s", kind, value)
            scores.append(RewardError(first + len(scores), kind, value, file, line))
        return scores

    async def _started(self) -> UserProcess:
        running = self._running
        if running is not None and running.exited.done():
            log.warning("the reward process ended while it had nothing to do")
            await self.close()
        if self._running is None:
            self._running = await UserProcess.start(self._code, free=self._free())
        return self._running


def _score(answer: Mapping[str, Any], sample: int) -> Score:
    """What the process says of one sample; ProcessDiedError for what it cannot have meant."""
    try:
        if "kind" in answer:
            return RewardError(
                sample,
                RewardErrorKind(answer["kind"]),
                printable(str(answer["value"])),
                printable(str(answer["file"])),
                max(0, int(answer["line"])),
            )
        reward = float(answer["reward"])
    except (KeyError, TypeError, ValueError) as error:
        raise ProcessDiedError(f"it sent no answer: {error!r}") from error
    if kind_of_number(reward) is not None:
        raise ProcessDiedError(f"it sent the reward {reward}")
    return reward


def _parts(answer: Mapping[str, Any], names: Sequence[str]) -> dict[str, float]:
    """The number of each part; ProcessDiedError for what it cannot have meant."""
    try:
        numbers = {name: float(answer["parts"][name]) for name in names}
    except (KeyError, TypeError, ValueError) as error:
        raise ProcessDiedError(f"it sent no numbers of the parts: {error!r}") from error
    for name, number in numbers.items():
        if kind_of_number(number) is not None:
            raise ProcessDiedError(f"it sent the number {number} for the part {name}")
    return numbers


def named(
    function: str,
    config: Mapping[str, Any],
    parts: Sequence[RewardPart],
    directory: Path | None,
    *,
    seconds: float,
    style: RewardStyle,
    text: ResponseText = _TEXT,
) -> str:
    """What the process is to call within `seconds`, in its `style`.

    `directory` has the model's tokenizer.
    """
    value = {"function": function, "config": dict(config), "style": style, "seconds": seconds}
    seen = {"ends": sorted(text.ends), "keep_special": text.keep_special}
    several = [asdict(part) for part in parts]
    return json.dumps({**value, **seen, "parts": several, "directory": str(directory or "")})


def request(
    prompt: Sequence[int],
    samples: Sequence[tuple[Sequence[int], float]],
    row: Mapping[str, Any],
    *,
    stop: bool,
) -> dict[str, Any]:
    """Ask for the rewards of samples of one prompt, in this order; `stop`: up to an error.

    A sample is a response, and what its environment's steps gave.
    """
    return {"prompt": prompt, "samples": samples, "row": row, "stop": stop}
