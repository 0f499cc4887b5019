"""The operator, made to die: SIGKILL just before or just after its n-th write.

Many of them are needed, so they are forked from one process that has imported everything.
"""

import multiprocessing
import os
import signal
import sys
from multiprocessing import forkserver
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any
from unittest import mock

_UNCOUNTED = {"leases", "events", "serviceaccounts/token"}
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["__main__", "rollcall_operator.app"])
_ROOT = Path(__file__).parents[2]


def start(*, when: str, write: int, log: Path, flags: tuple[str, ...]) -> ForkServerProcess:
    """Start one; `when` is before or after the `write`-th write, counted from 1."""
    paths = f"{_ROOT / 'operator'}:{_ROOT / 'workloads'}"  # else the imports ahead fail silently
    with mock.patch.dict(os.environ, PYTHONPATH=paths):
        forkserver.ensure_running()
    process = _CONTEXT.Process(target=_run, args=(when, write, str(log), flags), daemon=True)
    process.start()
    return process


def _run(when: str, write: int, log: str, flags: tuple[str, ...]) -> None:
    sink = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(sink, 1)
    os.dup2(sink, 2)
    from rollcall_operator import cli  # noqa: PLC0415 - the test's own process does without

    _die_at(write, after=when == "after")
    sys.exit(cli.main(["run", *flags, "--http-host", "127.0.0.1", "--http-port", "0"]))


def _die_at(number: int, *, after: bool) -> None:
    from rollcall_operator.kube.transport import Transport  # noqa: PLC0415

    count = 0
    send = Transport._once

    async def once(self: Transport, method: str, url: str, **rest: Any) -> bytes:
        nonlocal count
        if method == "GET" or rest["plural"] in _UNCOUNTED:
            return await send(self, method, url, **rest)
        count += 1
        last = count == number
        if last and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            return await send(self, method, url, **rest)
        finally:  # also where another operator was first
            if last:
                os.kill(os.getpid(), signal.SIGKILL)

    Transport._once = once  # type: ignore[method-assign]
