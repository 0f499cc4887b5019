"""What a process asks of the kernel about its parent and children; Linux alone grants it."""

import asyncio
import ctypes
import os
import signal
import sys

LOOK_SECONDS = 1.0  # between two looks at whether the parent is there
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # prctl(2)


def end_with_parent() -> None:
    """Have the kernel kill this process when the thread that started it ends, for any reason."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def adopt_orphans() -> None:
    """Have the kernel make this process the parent of what its descendants leave behind."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


async def parent_ended() -> None:
    """Wait until this process' parent is gone."""
    parent = os.getppid()
    while os.getppid() == parent:  # noqa: ASYNC110 - the kernel sends no event
        await asyncio.sleep(LOOK_SECONDS)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
