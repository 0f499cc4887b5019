"""A reward function with every fault, for some samples each."""

import os
import time
from collections.abc import Sequence
from pathlib import Path

from rollcall_runtime.tasks import repeat

NAME = f"{__name__}:reward"
FILLER = "filler"
MOST_BYTES = 64 * 2**20


def reward(prompt: Sequence[int], response: Sequence[int]) -> float:
    """The task's reward; some samples fill the disk for good, fork, raise or hang."""
    chance = hash((*prompt, *response)) % 1000
    if chance < 2 or (chance < 4 and os.fork() == 0):
        time.sleep(600)
    elif chance < 10:
        raise ValueError("no reward for this")
    elif chance < 16:
        # Not `gettempdir`, which takes /tmp where this one is full.
        _fill(Path(os.environ["TMPDIR"]))
    return repeat.reward(prompt, response)


def _fill(folder: Path) -> None:
    """OSError; RuntimeError on a disk that is not the test's small one."""
    with (folder / FILLER).open("ab", buffering=0) as file:
        while file.tell() < MOST_BYTES:
            file.write(b"x" * 4096)
    raise RuntimeError("this disk is too large to be filled")
