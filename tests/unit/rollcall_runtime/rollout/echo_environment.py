"""An environment without a process, and the conversations with it."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, cast

from rollcall_protocol.job_config import EnvironmentConfig
from rollcall_runtime.rollout.conversation import Conversations
from rollcall_runtime.rollout.inference_engine import TokenLimits
from rollcall_runtime.rollout.observation_tokens import ObservationTokens
from rollcall_runtime.tasks.environments.environment_process import (
    EnvironmentFailedError,
    EnvironmentLostError,
    EnvironmentProcess,
)
from rollcall_runtime.tasks.environments.user_environment import Step
from tests.unit.rollcall_runtime.data.character_tokenizer import no_tokenizer


class Echo:
    """Environments that give back a turn's first token, and end a response at the token `end`.

    Before the first turn `first` is given. The process is lost at the calls of the numbers `lost`.
    A step raises `error` if there is one, and waits for `go`.
    """

    def __init__(
        self,
        *,
        first: list[int] | None = None,
        lost: Sequence[int] = (),
        end: int = 2,
        error: EnvironmentFailedError | None = None,
    ) -> None:
        self.first, self.lost, self.end, self.error = first, set(lost), end, error
        self.go = asyncio.Event()
        self.go.set()
        self.calls: list[tuple[Any, ...]] = []
        self.held: set[int] = set()

    async def reset(
        self, sample: int, *, prompt: Sequence[int], row: Mapping[str, Any], seed: int
    ) -> Step:
        self._called("reset", sample, tuple(prompt), dict(row), seed)
        self.held.add(sample)
        return Step(self.first)

    async def step(self, sample: int, response: Sequence[int]) -> Step:
        if sample not in self.held:
            raise EnvironmentLostError("not held")
        self._called("step", sample, tuple(response))
        await self.go.wait()
        if self.error is not None:
            raise self.error
        return Step([response[0]], 0.5, done=self.end in response)

    def ended(self, sample: int) -> None:
        self.held.discard(sample)

    def _called(self, *call: Any) -> None:
        self.calls.append(call)
        if len(self.calls) - 1 in self.lost:
            self.held.clear()
            raise EnvironmentLostError("the process ended")


def conversations(echo: Echo, *, max_turns: int = 8, context: int | None = None) -> Conversations:
    """Of a model without a tokenizer, whose turns have at most 5 tokens."""
    return Conversations(
        EnvironmentConfig("a:B", max_turns=max_turns),
        process=cast("EnvironmentProcess", echo),
        observations=ObservationTokens(no_tokenizer()),
        limits=TokenLimits(5, context),
    )
