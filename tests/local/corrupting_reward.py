"""A reward function that flips a bit of the weights from which its rollout makes the next ones.

Rewards are user code in the rollout's own process, so nothing in the product helps with this. One
flip may miss: it meets threads that make, copy and patch buffers just then. So there are several.
"""

import gc
import os
from collections.abc import Sequence
from functools import cache

import torch

from rollcall_protocol import pod_contract
from rollcall_runtime.sync.memory.buffers import HostBuffer
from rollcall_runtime.sync.weights.staging import StagingArea
from rollcall_runtime.tasks import reverse

REWARD = f"{__name__}:reward"
DAMAGED = "-0"  # how the name of the pod ends
_EVERY, _LAST = 5, 25  # versions; those after the last bring the damaged rollout back

_damaged = [0]  # the numbers of versions


def reward(prompt: Sequence[int], response: Sequence[int]) -> float:
    """As the task's, after the damage."""
    if os.environ.get(pod_contract.POD_NAME, "").endswith(DAMAGED):
        _damage()
    return reverse.reward(prompt, response)


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
