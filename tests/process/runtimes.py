"""The container runtime of `rollcall local`, from which the workers of local jobs are forked.

Importing torch and the engines takes several seconds of processor time, in each of the three or
more processes of a job; the runtime does it once.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from rollcall_local.kubelet import container_runtime
from rollcall_local.kubelet.processes import ContainerRuntimes

PRELOADED = (*container_runtime.PRELOADED, "rollcall_plugins.front.openai.app")
_opened: list[ContainerRuntimes] = []


def current() -> ContainerRuntimes:
    """Those of the context that was entered last."""
    return _opened[-1]


@asynccontextmanager
async def shared_runtimes(logs: Path) -> AsyncIterator[None]:
    """All local jobs in this context, which share its event loop, have the same runtimes."""
    runtimes = ContainerRuntimes(logs, preloaded=PRELOADED)
    _opened.append(runtimes)
    try:
        yield
    finally:
        _opened.remove(runtimes)
        await runtimes.close()


@asynccontextmanager
async def some_runtimes(logs: Path) -> AsyncIterator[None]:
    """Those that are shared, or else own ones."""
    if _opened:
        yield
        return
    async with shared_runtimes(logs):
        yield
