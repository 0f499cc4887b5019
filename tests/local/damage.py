"""A reward function that flips a bit of the weights from which its rollout makes the next ones.

Rewards are user code in the rollout's own process, so nothing in the product helps with this.
"""

import gc
import os
import threading
from collections.abc import Sequence

import torch

from rollcall_protocol import env
from rollcall_runtime.sync.memory.buffers import HostBuffer
from rollcall_runtime.sync.weights.staging import Stage
from rollcall_runtime.tasks import reverse

REWARD = f"{__name__}:reward"
BASE_AT = 5  # the number of the first version that may be damaged
_DAMAGED = "-0"  # how the name of the pod ends

_over = threading.Event()
if not os.environ.get(env.POD_NAME, "").endswith(_DAMAGED):
    _over.set()


def reward(prompt: Sequence[int], response: Sequence[int]) -> float:
    """As the task's, after the damage."""
    if not _over.is_set() and _damage():
        _over.set()
    return reverse.reward(prompt, response)


def _damage() -> bool:
    """Whether there was something to damage: the served weights and every copy of them."""
    things = gc.get_objects()
    stage = next(thing for thing in things if isinstance(thing, Stage))
    version = stage.served
    held = stage.held(version) if version and version.number >= BASE_AT else None
    if held is None:
        return False
    # Once for each memory, however many buffers share it.
    found = {
        torch.frombuffer(thing.memory, dtype=torch.uint8).data_ptr(): thing.memory
        for thing in things
        if isinstance(thing, HostBuffer) and thing.nbytes == held.buffer.nbytes
    }
    for memory in found.values():
        memory[0] ^= 1
    return True
