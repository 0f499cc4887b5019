"""Drains a rollout: returns waiting leases, finishes what runs, delivers the completions."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

from rollcall_protocol.wire.messages import Draining, MemberMessage, PromptLeaseReturned
from rollcall_runtime.rollout.completion_sender import CompletionSender
from rollcall_runtime.rollout.generation_endpoint import GenerationEndpoint
from rollcall_runtime.rollout.generation_worker import GenerationWorker
from rollcall_runtime.rollout.lease_progress import LeaseProgress, LeaseProgressReporter
from rollcall_runtime.worker.telemetry import RolloutMetrics

log = logging.getLogger(__name__)

DELIVER_SECONDS = 5.0  # beyond the drain's own bound, for what is ready but not delivered


class Drain:
    """One drain a process. `begin` may be called more than once; the first reason counts.

    The rollout stays in its session and receives weights until the drain is complete.
    """

    def __init__(
        self,
        *,
        timeout: float,
        generator: GenerationWorker,
        endpoint: GenerationEndpoint,
        sender: CompletionSender,
        reporter: LeaseProgressReporter,
        send: Callable[[MemberMessage], None],
        metrics: RolloutMetrics,
    ) -> None:
        self._timeout, self._generator, self._sender = timeout, generator, sender
        self._endpoint = endpoint
        self._reporter, self._send, self._metrics = reporter, send, metrics
        self._reason: str | None = None
        self._began = 0.0
        self._asked = asyncio.Event()

    @property
    def draining(self) -> bool:
        """Whether the drain has begun: the rollout takes no new prompts."""
        return self._reason is not None

    def begin(self, reason: str) -> None:
        """Take no new prompts, report that, and return the waiting leases."""
        if self._reason is not None:
            return
        log.info("draining: %s", reason)
        self._reason, self._began = reason, time.monotonic()
        self._asked.set()
        self.announce()
        self._return(self._generator.return_waiting())

    def announce(self) -> None:
        """Report the drain; on each new stream again, as the coordinator may have restarted."""
        if self._reason is not None:
            self._send(Draining(self._reason, self._left))

    async def complete(self) -> None:
        """Wait for `begin`, then for leases and the front's requests, at most `timeout` seconds."""
        await self._asked.wait()
        try:
            async with asyncio.timeout(self._left):
                await self._generator.idle()
                await self._endpoint.idle()
        except TimeoutError:
            self._return(self._generator.return_all())
            self._endpoint.end()
        if not await self._sender.flush(self._left + DELIVER_SECONDS):
            log.warning("%d completions were not delivered", self._sender.backlog)
        seconds = time.monotonic() - self._began
        self._metrics.drain_seconds.set(seconds)
        log.info("drained in %.2f s", seconds)

    @property
    def _left(self) -> float:
        return max(0.0, self._timeout - (time.monotonic() - self._began))

    def _return(self, returned: Sequence[LeaseProgress]) -> None:
        # In this order, on one stream: another rollout continues from the reported tokens.
        self._reporter.report([*returned, *self._generator.lease_progress()])
        for progress in returned:
            self._send(PromptLeaseReturned(progress.lease.lease_id))
