"""A supervised process that calls the user's reward function for this rollout.

What the function does to its process (exit, fork, hang, use up memory) leaves the rollout and its
weights alone. `rollcall_runtime.tasks.reward_child` is the process's side.
"""

import asyncio
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from rollcall_protocol.job_config import RewardPart
from rollcall_protocol.wire.reward_errors import (
    RewardError,
    RewardErrorKind,
    kind_of_number,
    printable,
)
from rollcall_runtime.tasks.reward_function import FIELD
from rollcall_runtime.tasks.reward_messages import LENGTH, MAX_ANSWER, named, request
from rollcall_runtime.worker.container_memory import free_memory
from rollcall_runtime.worker.errors import SpecError

log = logging.getLogger(__name__)

START_SECONDS = 120.0  # to import the user's module, and what that imports
ANSWER_SECONDS = 0.2  # for the last answer of a process that has exited
LEAST_MEMORY = 256 << 20  # bytes
_MAIN = "import rollcall_runtime.tasks.reward_child as m; m.main()"

_NO_CONFIG: Mapping[str, Any] = MappingProxyType({})

Score = float | RewardError
OfParts = Callable[[Mapping[str, float]], None]


class RewardScorer(Protocol):
    """Scores the responses of prompts."""

    async def score(
        self, prompt: Sequence[int], responses: Sequence[Sequence[int]], row: Mapping[str, Any]
    ) -> list[Score]:
        """A reward or an error for each response; fewer if the rest is not worth scoring."""


class _ProcessDiedError(RuntimeError):
    """The process ended, or answered what it should not."""


@dataclass(frozen=True, slots=True)
class _Running:
    process: asyncio.subprocess.Process
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    exited: asyncio.Task[int]
    file: str
    line: int


class RewardProcess:
    """Scores responses, one after the other, each within `timeout` seconds.

    With `stop_at_error` the responses after the first error of a prompt are not scored. A process
    that ended or was killed is started again for the next response. It may allocate half of what
    `free` bytes say that the container has left when it starts. `config` are the settings of a
    function that has a name, `parts` stand in its place; `directory` has the model's tokenizer.
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
        of_parts: OfParts = lambda _: None,
    ) -> None:
        self._of_parts, self._part_names = of_parts, [part.name for part in parts]
        self._function = function or ", ".join(part.function for part in parts)
        self._named, self._timeout = named(function, config, parts, directory), timeout
        self._stop_at_error, self._free = stop_at_error, free
        self._running: _Running | None = None

    @property
    def pid(self) -> int | None:
        """Of the process; None while there is none."""
        return self._running.process.pid if self._running is not None else None

    async def start(self) -> None:
        """Start the process; SpecError if it cannot load the function."""
        await self._started()

    async def score(
        self, prompt: Sequence[int], responses: Sequence[Sequence[int]], row: Mapping[str, Any]
    ) -> list[Score]:
        """A reward or an error for each response; see RewardScorer."""
        scores: list[Score] = []
        while len(scores) < len(responses):
            rest = responses[len(scores) :]
            scores += await self._score_until_killed(prompt, rest, row, first=len(scores))
            if self._stop_at_error and isinstance(scores[-1], RewardError):
                break
        return scores

    async def close(self) -> None:
        """End the process."""
        running, self._running = self._running, None
        if running is not None:
            await _kill(running)

    async def _score_until_killed(
        self,
        prompt: Sequence[int],
        responses: Sequence[Sequence[int]],
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
            running.writer.write(request(prompt, responses, row, stop=self._stop_at_error))
            for sample in range(first, first + len(responses)):
                async with asyncio.timeout(self._timeout):
                    answer = await _answer(running)
                scores.append(_score(answer, sample))
                if self._part_names and not isinstance(scores[-1], RewardError):
                    self._of_parts(_parts(answer, self._part_names))
                if self._stop_at_error and isinstance(scores[-1], RewardError):
                    break
        except (TimeoutError, _ProcessDiedError, SpecError) as error:
            await self.close()
            timed_out = isinstance(error, TimeoutError)
            kind = RewardErrorKind.TIMED_OUT if timed_out else RewardErrorKind.PROCESS_DIED
            value = f"{self._timeout:g} s" if timed_out else printable(str(error))
            log.warning("the reward process is started again: %s: %s", kind, value)
            scores.append(RewardError(first + len(scores), kind, value, file, line))
        return scores

    async def _started(self) -> _Running:
        running = self._running
        if running is not None and running.exited.done():
            log.warning("the reward process ended while it had nothing to do")
            await self.close()
        if self._running is None:
            self._running = await self._start()
        return self._running

    async def _start(self) -> _Running:
        ours, theirs = socket.socketpair()
        with theirs:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-c",
                _MAIN,
                *(str(theirs.fileno()), str(os.getpid()), str(self._memory()), self._named),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                start_new_session=True,  # so that it is killed with the processes that it started
            )
        reader, writer = await asyncio.open_connection(sock=ours)
        exited = asyncio.create_task(process.wait())
        running = _Running(process, reader, writer, exited, "", 0)
        try:
            async with asyncio.timeout(START_SECONDS):
                definition = await _answer(running)
        except TimeoutError as error:
            await _kill(running)
            problem = f"{self._function!r} was not imported within {START_SECONDS:g} s"
            raise SpecError(FIELD, problem) from error
        except BaseException as error:
            await _kill(running)
            if isinstance(error, _ProcessDiedError):
                problem = f"importing {self._function!r} ended its process: {error}"
                raise SpecError(FIELD, problem) from error
            raise
        if "refused" in definition:
            await _kill(running)
            raise SpecError(str(definition.get("field", FIELD)), str(definition["refused"]))
        place = (printable(str(definition.get("file", ""))), int(definition.get("line", 0)))
        return _Running(process, reader, writer, exited, *place)

    def _memory(self) -> int:
        free = self._free()
        return 0 if free is None else max(LEAST_MEMORY, free // 2)


async def _answer(running: _Running) -> dict[str, Any]:
    """The next message of the process. _ProcessDiedError if it ends instead."""
    reading, exited = asyncio.ensure_future(_read(running.reader)), running.exited
    try:
        await asyncio.wait({reading, exited}, return_when=asyncio.FIRST_COMPLETED)
        if not reading.done():  # something that it started may hold the socket open
            await asyncio.wait({reading}, timeout=ANSWER_SECONDS)
        if reading.done() and reading.exception() is None:
            return reading.result()
        await asyncio.wait({exited}, timeout=ANSWER_SECONDS)
    finally:
        reading.cancel()
    if exited.done():
        raise _ProcessDiedError(_exit_text(exited.result()))
    raise _ProcessDiedError(f"it sent no answer: {reading.exception()}")


async def _read(reader: asyncio.StreamReader) -> dict[str, Any]:
    (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
    if length > MAX_ANSWER:
        raise ValueError(f"a message of {length} bytes")
    message = json.loads(await reader.readexactly(length))
    if not isinstance(message, dict):
        raise TypeError(f"a message that is a {type(message).__name__}")
    return message


def _score(answer: Mapping[str, Any], sample: int) -> Score:
    """What the process says of one sample; _ProcessDiedError for what it cannot have meant."""
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
        raise _ProcessDiedError(f"it sent no answer: {error!r}") from error
    if kind_of_number(reward) is not None:
        raise _ProcessDiedError(f"it sent the reward {reward}")
    return reward


def _parts(answer: Mapping[str, Any], names: Sequence[str]) -> dict[str, float]:
    """The number of each part; _ProcessDiedError for what it cannot have meant."""
    try:
        numbers = {name: float(answer["parts"][name]) for name in names}
    except (KeyError, TypeError, ValueError) as error:
        raise _ProcessDiedError(f"it sent no numbers of the parts: {error!r}") from error
    for name, number in numbers.items():
        if kind_of_number(number) is not None:
            raise _ProcessDiedError(f"it sent the number {number} for the part {name}")
    return numbers


async def _kill(running: _Running) -> None:
    """End the process and what it started in its session."""
    with suppress(ProcessLookupError):
        os.killpg(running.process.pid, signal.SIGKILL)
    running.writer.close()
    await running.exited


def _exit_text(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else str(-code)
    return f"signal {name}"
