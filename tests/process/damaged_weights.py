"""Has a rollout flip a bit of the weights from which it makes the next ones, whenever it scores.

Import it before the program. One flip may miss: it meets threads that make, copy and patch buffers
just then. So there are several. A process without DAMAGES keeps its weights.
"""

import gc
import os
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch

from rollcall_runtime.rollout import app
from rollcall_runtime.sync.memory.buffers import HostBuffer
from rollcall_runtime.sync.weights.staging import StagingArea
from rollcall_runtime.tasks.reward_process import Score
from rollcall_runtime.tasks.reward_processes import RewardProcesses

DAMAGES = "DAMAGES_ITS_WEIGHTS"  # a variable of the process
_EVERY, _LAST = 5, 25  # versions; those after the last bring the damaged rollout back

_damaged = [0]  # the numbers of versions


class _DamagingProcesses(RewardProcesses):
    async def score(
        self,
        prompt: Sequence[int],
        responses: Sequence[Sequence[int]],
        row: Mapping[str, Any],
        environment_rewards: Sequence[float] = (),
    ) -> list[Score]:
        _damage()
        return await super().score(prompt, responses, row, environment_rewards)


if DAMAGES in os.environ:
    setattr(app, "RewardProcesses", _DamagingProcesses)  # noqa: B010 - not an exported name


@cache
def _stage() -> StagingArea:
    return next(thing for thing in gc.get_objects() if isinstance(thing, StagingArea))


def _damage() -> None:
    """If it is time again: the served weights and every copy of them."""
    version = _stage().served
    if version is None or not _damaged[-1] + _EVERY <= version.number <= _LAST:
        return
    held = _stage().held(version)
    if held is None:
        return
    _damaged.append(version.number)
    # Once for each memory, however many buffers share it.
    found = {
        torch.frombuffer(thing.memory, dtype=torch.uint8).data_ptr(): thing.memory
        for thing in gc.get_objects()
        if isinstance(thing, HostBuffer) and thing.nbytes == held.buffer.nbytes
    }
    for memory in found.values():
        memory[0] ^= 1
