"""An inference engine without a model, whose tokens come when they are due.

Workers find it by the entry point of a distribution that `install` writes.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from rollcall_protocol.prompts.sample_check import MAX_POSITIONS
from rollcall_runtime.rollout.inference_engine import (
    GenerationRequest,
    InferenceEngine,
    NewTokens,
    PauseMode,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Mapping
    from pathlib import Path

    from torch import Tensor

NAME = "paced"
INTERVAL_NS = 50_000_000
_FIRST_TOKEN, _TOKENS = (
    5,
    90,
)  # of `tests.process.engines.tiny_models`; none ends a response


def install(folder: Path) -> Path:
    """A distribution with this engine; its folder goes onto PYTHONPATH."""
    info = folder / "paced_engine-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: paced-engine\nVersion: 0\n")
    engine = f"{NAME} = {__name__}:{PacedEngine.__name__}"
    (info / "entry_points.txt").write_text(f"[rollcall.inference_engines]\n{engine}\n")
    return folder


def due(seed: int, number: int) -> int:
    """When token `number` of a response is due, in nanoseconds of CLOCK_MONOTONIC."""
    return seed + number * INTERVAL_NS


class PacedEngine(InferenceEngine):
    """Gives the first token at once and each other one when it is due: see `due`."""

    def __init__(self, *, model: str, config: Mapping[str, Any]) -> None:
        del model, config
        self._version: int | None = None

    @property
    def version(self) -> int | None:
        return self._version

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[NewTokens, None]:
        most = request.sampling.max_tokens or MAX_POSITIONS
        for number in range(len(request.begun.tokens), most):
            if number:
                left = due(request.seed, number) - time.monotonic_ns()
                await asyncio.sleep(max(0, left) / 1e9)
            if self._version is None:
                raise RuntimeError("no weights have been loaded yet")
            token, last = _FIRST_TOKEN + number % _TOKENS, number + 1 == most
            yield NewTokens((token,), (-1.0,), (self._version,), finished=last)

    async def update_weights(
        self,
        weights: Iterable[tuple[str, Tensor]],
        *,
        version: int,
        running: PauseMode,
        seconds: float,
    ) -> None:
        del weights, running, seconds
        self._version = version

    async def close(self) -> None:
        self._version = None
