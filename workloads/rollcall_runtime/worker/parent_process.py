"""What a child process asks of the kernel about its parent."""

import ctypes
import signal

_PR_SET_PDEATHSIG = 1  # prctl(2)


def end_with_parent() -> None:
    """Have the kernel kill this process when the thread that started it ends, for any reason."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
