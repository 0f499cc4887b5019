"""The operator as a process of its own, which ends with the one that has started it."""

import signal
import sys

from rollcall_operator.cli import main

_DEATH_SIGNAL = 1  # prctl(2)


def end_with_parent() -> None:
    """Linux alone can have the kernel end a process with its parent."""
    if sys.platform == "linux":
        import ctypes  # noqa: PLC0415

        ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)


if __name__ == "__main__":
    end_with_parent()
    sys.exit(main())
