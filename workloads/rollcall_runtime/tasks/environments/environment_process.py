"""Calls the environments of a rollout's samples, all in one process of their own.

`rollcall_runtime.tasks.environments.environment_child` is the process's side. A call that hangs or
ends the process takes the environments of the other samples with it; each of these makes its own
again from the turns that it has.
"""

import asyncio
import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rollcall_protocol.job_config import EnvironmentConfig
from rollcall_protocol.wire.reward_errors import RewardErrorKind, kind_of_number, printable
from rollcall_runtime.tasks.environments import environment_messages as messages
from rollcall_runtime.tasks.environments.user_environment import FIELD, Step, checked_observation
from rollcall_runtime.tasks.user_process import ProcessDiedError, UserCode, UserProcess
from rollcall_runtime.worker.container_memory import free_memory
from rollcall_runtime.worker.errors import SpecError

log = logging.getLogger(__name__)


class EnvironmentFailedError(RuntimeError):
    """A call gave no usable answer. `value` is printable; `file` is empty if it is not known."""

    def __init__(self, kind: RewardErrorKind, value: str, file: str = "", line: int = 0) -> None:
        super().__init__(f"{kind}: {value} ({file}:{line})")
        self.kind, self.value, self.file, self.line = kind, printable(value), file, line


class EnvironmentLostError(RuntimeError):
    """The process ended, and with it this sample's environment."""


class EnvironmentProcess:
    """One environment for each sample, by number; a process that ended begins again with `reset`.

    Each call has the time limit of `config`. The process may allocate half of what `free` bytes say
    that the container has left; `directory` has the model's tokenizer.
    """

    def __init__(
        self,
        config: EnvironmentConfig,
        *,
        directory: Path | None,
        free: Callable[[], int | None] = free_memory,
    ) -> None:
        self._seconds, self._free = config.step_seconds, free
        self._code = UserCode(
            "rollcall_runtime.tasks.environments.environment_child",
            named=messages.named(config, directory),
            shown=config.shown,
            field=FIELD,
            max_answer=messages.MAX_ANSWER,
        )
        self._running: UserProcess | None = None
        self._reading: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()
        self._slots = asyncio.Semaphore(messages.AT_ONCE)
        self._calls: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._numbers = itertools.count()
        self._held: set[int] = set()  # the samples that have an environment in the process

    @property
    def pid(self) -> int | None:
        """Of the process; None while there is none."""
        return self._running.process.pid if self._running is not None else None

    async def start(self) -> None:
        """Start the process; SpecError if it cannot load the environment."""
        async with self._starting:
            if self._running is None:
                self._running = await UserProcess.start(self._code, free=self._free())
                self._reading = asyncio.create_task(self._read(self._running))

    async def reset(
        self, sample: int, *, prompt: Sequence[int], row: Mapping[str, Any], seed: int
    ) -> Step:
        """Begin anew with a sample. EnvironmentFailedError; EnvironmentLostError."""
        try:
            await self.start()
        except SpecError as error:  # it could be loaded before
            raise EnvironmentLostError(str(error)) from error
        self._held.add(sample)
        call = next(self._numbers)
        return await self._call(
            call, messages.reset(call, sample, prompt=prompt, row=row, seed=seed)
        )

    async def step(self, sample: int, response: Sequence[int]) -> Step:
        """The answer to a turn. EnvironmentFailedError; EnvironmentLostError."""
        if sample not in self._held:
            raise EnvironmentLostError("its process ended")
        call = next(self._numbers)
        return await self._call(call, messages.step(call, sample, response=response))

    def ended(self, sample: int) -> None:
        """Forget a sample; harmless for one without an environment."""
        if sample in self._held and self._running is not None:
            self._held.discard(sample)
            self._running.send(messages.ended(sample))

    async def close(self) -> None:
        """End the process, and all calls."""
        running, self._running = self._running, None
        reading, self._reading = self._reading, None
        if running is not None:
            self._lose("the rollout closed it")
            await running.kill()
        if reading is not None:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    # --- inside --------------------------------------------------------------------------------

    async def _call(self, call: int, request: dict[str, Any]) -> Step:
        async with self._slots:
            running = self._running
            if running is None or request["sample"] not in self._held:
                raise EnvironmentLostError("its process ended")
            answer = self._calls[call] = asyncio.get_running_loop().create_future()
            try:
                running.send(request)
                async with asyncio.timeout(self._seconds):
                    return _step(await answer, running)
            except TimeoutError:
                await self._end(running, "a call hung")
                value = f"{self._seconds:g} s"
                place = running.file, running.line
                raise EnvironmentFailedError(RewardErrorKind.TIMED_OUT, value, *place) from None
            finally:
                self._calls.pop(call, None)

    async def _read(self, running: UserProcess) -> None:
        """Hand answers to their calls until the process ends."""
        try:
            while True:
                answer = await running.answer()
                waiting = self._calls.get(answer.get("call", -1))
                if waiting is not None and not waiting.done():
                    waiting.set_result(answer)
        except (ProcessDiedError, TypeError) as error:
            await self._end(running, str(error))

    async def _end(self, running: UserProcess, why: str) -> None:
        if self._running is running:
            log.warning("the environment process is started again: %s", printable(why))
            self._running = None
            self._lose(why)
        await running.kill()

    def _lose(self, why: str) -> None:
        self._held.clear()
        for waiting in self._calls.values():
            if not waiting.done():
                waiting.set_exception(EnvironmentLostError(why))


def _step(answer: Mapping[str, Any], running: UserProcess) -> Step:
    """What the process says; EnvironmentFailedError for an error, or what it cannot have meant."""
    try:
        if "kind" in answer:
            place = printable(str(answer["file"])), max(0, int(answer["line"]))
            kind, value = RewardErrorKind(answer["kind"]), str(answer["value"])
            raise EnvironmentFailedError(kind, value, *place)
        observation = checked_observation(answer["observation"])
        return Step(observation, _reward(answer["reward"]), bool(answer["done"]))
    except (KeyError, TypeError, ValueError) as error:
        value, place = f"it sent no answer: {error!r}", (running.file, running.line)
        raise EnvironmentFailedError(RewardErrorKind.PROCESS_DIED, value, *place) from error


def _reward(value: Any) -> float:
    reward = float(value)
    if kind_of_number(reward) is not None:
        raise ValueError(f"the reward {reward}")
    return reward
