"""An inference engine that samples without a model and stops where a test wants it to."""

import asyncio
from collections.abc import AsyncGenerator, Iterable

from torch import Tensor

from rollcall_protocol.wire.messages import PromptLease
from rollcall_protocol.wire.partial_responses import PartialResponses
from rollcall_runtime.rollout.inference_engine import (
    GenerationRequest,
    InferenceEngine,
    NewTokens,
    PauseMode,
)
from rollcall_runtime.worker.telemetry import RolloutMetrics

TOKENS = (3, 4, 2)


def rollout_metrics() -> RolloutMetrics:
    return RolloutMetrics(namespace="default", job="reverse", pool="cpu", group="default")


def lease(
    number: int, *, group_size: int = 2, begun: PartialResponses | None = None
) -> PromptLease:
    return PromptLease(
        f"1.1.{number}", number, (0, 5, 6, 1), group_size, seed=number, partial=begun
    )


class FakeEngine(InferenceEngine):
    """Each request gives `early` of TOKENS, waits for `go`, then gives the others.

    The first `cut_short` requests give one token and are aborted.
    """

    def __init__(self, *, cut_short: int = 0, blocked: bool = False, early: int = 0) -> None:
        self.requests: list[GenerationRequest] = []
        self.ended = 0  # requests, however they ended
        self.go = asyncio.Event()
        self.prepared: list[int] = []
        self.loaded: list[int] = []
        self.updates: list[PauseMode] = []
        self.error: Exception | None = None  # of `generate`
        self.refuse: Exception | None = None  # of `update_weights`
        self.unprepared: Exception | None = None  # of `prepare`
        self.failed = ""
        self._version: int | None = 0
        self._cut_short, self._early = cut_short, early
        self._requested = asyncio.Event()
        if not blocked:
            self.go.set()

    @property
    def version(self) -> int | None:
        return self._version

    @property
    def failure(self) -> str:
        return self.failed

    async def requested(self, count: int = 1) -> None:
        """Wait until there have been so many requests."""
        while len(self.requests) < count:
            self._requested.clear()
            await self._requested.wait()

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[NewTokens, None]:
        self.requests.append(request)
        self._requested.set()
        at, cut_short = len(request.begun.tokens), len(self.requests) <= self._cut_short
        try:
            if self.error is not None:
                raise self.error
            if cut_short or at < self._early:
                until = at + 1 if cut_short else self._early
                yield self._piece(at, until)
                at = until
            if cut_short:
                return
            await self.go.wait()
            yield self._piece(at, len(TOKENS))
        finally:
            self.ended += 1

    def _piece(self, since: int, until: int) -> NewTokens:
        count = until - since
        versions = (self._version or 0,) * count
        return NewTokens(
            TOKENS[since:until], (-1.0,) * count, versions, finished=until == len(TOKENS)
        )

    async def prepare(self, weights: Iterable[tuple[str, Tensor]], *, version: int) -> None:
        if self.unprepared is not None:
            raise self.unprepared
        self.prepared.append(version)

    async def update_weights(
        self,
        weights: Iterable[tuple[str, Tensor]],
        *,
        version: int,
        running: PauseMode,
        seconds: float,
    ) -> None:
        self.updates.append(running)
        for _ in weights:
            pass
        if self.refuse is not None:
            raise self.refuse
        self.loaded.append(version)
        self._version = version

    async def close(self) -> None:
        self.go.set()
