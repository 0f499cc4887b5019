"""Scores several samples at once, each in a reward process of its own."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from rollcall_protocol.job_config import JobConfig
from rollcall_protocol.wire.reward_errors import RewardError
from rollcall_runtime.tasks.reward_process import OfParts, RewardProcess, Score
from rollcall_runtime.tasks.reward_text import ResponseText
from rollcall_runtime.worker.container_memory import free_memory


class RewardProcesses:
    """As many reward processes as a job's `spec.reward.concurrency`; see RewardScorer.

    The first begins with `start`, the others when a sample waits for them. What a sample does to
    its process harms no other sample. Together they may allocate half of the container's free
    memory. The model in `directory` ends responses with `ends`. `of_parts`: see RewardProcess.
    """

    def __init__(
        self,
        job: JobConfig,
        *,
        directory: Path | None,
        ends: frozenset[int],
        stop_at_error: bool,
        of_parts: OfParts = lambda _: None,
    ) -> None:
        number = job.reward_scoring.concurrency
        self._stop_at_error = stop_at_error
        self._all = [
            RewardProcess(
                job.reward_function,
                timeout=job.reward_errors.timeout,
                stop_at_error=stop_at_error,
                free=lambda: None if (free := free_memory()) is None else free // number,
                parts=job.reward_scoring.parts,
                config=job.reward_scoring.config,
                style=job.reward_scoring.style,
                directory=directory,
                text=ResponseText.of(job, ends=ends),
                of_parts=of_parts,
            )
            for _ in range(number)
        ]
        # The last one used is used again first, so that processes begin only when they are needed.
        self._idle: asyncio.LifoQueue[RewardProcess] = asyncio.LifoQueue()
        for process in reversed(self._all):
            self._idle.put_nowait(process)

    async def start(self) -> None:
        """Start the first process; SpecError if it cannot load the function."""
        await self._all[0].start()

    async def score(
        self,
        prompt: Sequence[int],
        responses: Sequence[Sequence[int]],
        row: Mapping[str, Any],
        environment_rewards: Sequence[float] = (),
    ) -> list[Score]:
        """A reward or an error for each response; see RewardScorer."""
        if len(self._all) == 1:
            async with self._process() as process:
                return await process.score(prompt, responses, row, environment_rewards)
        failed = asyncio.Event()

        async def one(sample: int) -> Score | None:
            async with self._process() as process:
                if failed.is_set() and self._stop_at_error:
                    return None
                gained = environment_rewards[sample : sample + 1]
                (score,) = await process.score(prompt, [responses[sample]], row, gained)
            if isinstance(score, RewardError):
                failed.set()
                return RewardError(sample, score.kind, score.value, score.file, score.line)
            return score

        async with asyncio.TaskGroup() as group:
            scoring = [group.create_task(one(sample)) for sample in range(len(responses))]
        scores: list[Score] = []
        for task in scoring:
            score = task.result()
            if score is None:
                break
            scores.append(score)
            if self._stop_at_error and isinstance(score, RewardError):
                break
        return scores

    async def close(self) -> None:
        """Kill all processes, one after the other."""
        for process in self._all:
            await process.close()

    @asynccontextmanager
    async def _process(self) -> AsyncIterator[RewardProcess]:
        process, ended = await self._idle.get(), False
        try:
            yield process
            ended = True
        finally:
            if not ended:  # an answer may still be on its way
                await process.close()
            self._idle.put_nowait(process)
