"""Programs with the mark of a container, for tests."""

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator

from rollcall_local.kubelet.marks import MARK, end_all, marked
from tests.unit.rollcall_local.kubelet.containers_here import SECONDS


@contextlib.contextmanager
def program(*argv: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """A program that runs, with more variables; all that bear its mark end with it."""
    env = {**os.environ, **environment}
    with subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            end_all({process.pid: environment.get(MARK, "")}, seconds=SECONDS)
            process.kill()


def line(process: subprocess.Popen[str]) -> str:
    """The next one that it writes."""
    assert process.stdout is not None
    return process.stdout.readline()


def found_in_time(container: str, *pids: int) -> None:
    """Wait until these are the container's: one that is just being executed is not found."""
    deadline = time.monotonic() + SECONDS
    while sorted(marked(container)) != sorted(pids):
        assert time.monotonic() < deadline
        time.sleep(0.01)
