"""Standard output of a command that others read."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import TextIO

_STDOUT, _STDERR = 1, 2


@contextmanager
def own_output() -> Iterator[TextIO]:
    """Standard output for the command's result alone: whatever else is printed meanwhile, C
    libraries' words included, goes to standard error.
    """
    sys.stdout.flush()
    kept = os.dup(_STDOUT)
    os.dup2(_STDERR, _STDOUT)
    try:
        with (
            os.fdopen(os.dup(kept), "w", encoding="utf-8") as output,
            redirect_stdout(sys.stderr),
        ):
            yield output
    finally:
        sys.stdout.flush()
        os.dup2(kept, _STDOUT)
        os.close(kept)
