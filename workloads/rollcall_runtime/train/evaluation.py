"""Evaluates a job's weights on held-out prompts every so many steps, beside training."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from rollcall_protocol.job_config import EvaluationConfig
from rollcall_runtime.train.step_figures import as_text, evaluation_figures

log = logging.getLogger(__name__)

FINAL_SECONDS = 120.0  # for the evaluation under way at the end of training


class Evaluation:
    """One at a time; `None` for a job without any.

    `answer` has the rollouts answer the held-out prompts and returns the rewards of each one's
    samples. `record` gets the figures of a step.
    """

    def __init__(
        self,
        config: EvaluationConfig | None,
        *,
        answer: Callable[[], Coroutine[Any, Any, Sequence[Sequence[float]]]],
        record: Callable[[int, Mapping[str, float]], None],
    ) -> None:
        self._config, self._answer, self._record = config, answer, record
        self._running: asyncio.Task[None] | None = None

    def served(self, step: int) -> None:
        """Rollouts serve the weights of `step`: evaluate them, if that is due.

        Raises what ended the evaluation before; skips this one if that still runs.
        """
        if self._config is None or step % self._config.every_steps:
            return
        if self._running is not None:
            if not self._running.done():
                log.warning("step %d is not evaluated: the evaluation before still runs", step)
                return
            self._running.result()
        self._running = asyncio.create_task(self._evaluate(self._config, step))

    async def finish(self, stop: asyncio.Event) -> None:
        """Wait for the evaluation under way until `stop`, at most FINAL_SECONDS.

        Raises what ended it.
        """
        if self._running is None:
            return
        stopped = asyncio.create_task(stop.wait())
        await asyncio.wait(
            {self._running, stopped}, timeout=FINAL_SECONDS, return_when=asyncio.FIRST_COMPLETED
        )
        stopped.cancel()
        if self._running.done():
            self._running.result()
        else:
            log.warning("the last evaluation is given up")

    async def close(self) -> None:
        """Give up what still runs."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    async def _evaluate(self, config: EvaluationConfig, step: int) -> None:
        figures = evaluation_figures(await self._answer(), config)
        log.info("evaluation of step %d: %s", step, as_text(figures), extra={"figures": figures})
        self._record(step, figures)
