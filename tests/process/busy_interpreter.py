"""Has a rollout keep its interpreter busy with a thread for some 10 ms of each sample it scores.

Import it before the program. It does nothing in a process without BUSY.
"""

import asyncio
import os
from collections.abc import Mapping, Sequence
from typing import Any

from rollcall_runtime.rollout import app
from rollcall_runtime.tasks.reward_process import Score
from rollcall_runtime.tasks.reward_processes import RewardProcesses

BUSY = "BUSY_INTERPRETER"  # a variable of the process


class _BusyProcess(RewardProcesses):
    async def score(
        self,
        prompt: Sequence[int],
        responses: Sequence[Sequence[int]],
        row: Mapping[str, Any],
        environment_rewards: Sequence[float] = (),
    ) -> list[Score]:
        await asyncio.to_thread(_spin, len(responses) * 200_000)
        return await super().score(prompt, responses, row, environment_rewards)


def _spin(times: int) -> None:
    """Nothing but Python."""
    total = 0
    for number in range(times):
        total += number


if BUSY in os.environ:
    setattr(app, "RewardProcesses", _BusyProcess)  # noqa: B010 - not an exported name
