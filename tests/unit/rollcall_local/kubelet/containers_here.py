"""Containers that run on this machine, for tests; their programs are small ones of a shell."""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from rollcall_local.kubelet.marks import marked
from rollcall_local.kubelet.processes import ContainerProcess, ContainerRuntime, ContainerRuntimes

SECONDS = 20.0  # that anything may take on a loaded machine


class Containers:
    """One runtime without torch, and the containers that it has started."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.runtimes = ContainerRuntimes(folder, preloaded=())
        self.log_file = folder / "out.log"

    @property
    def runtime(self) -> ContainerRuntime:
        """A runtime that has not ended."""
        return self.runtimes.of(Path(sys.executable), {})

    @property
    def output(self) -> str:
        """What all have written."""
        return self.log_file.read_text() if self.log_file.exists() else ""

    async def run(
        self, script: str, *, container: str = "", folder: Path | None = None, **environment: str
    ) -> ContainerProcess:
        """Start a container that runs a shell's script."""
        runtime = self.runtime
        await runtime.ready()
        return await runtime.run(
            container=container or self.name(),
            argv=["sh", "-c", script],
            environment={"PATH": os.environ["PATH"], **environment},
            folder=folder or self.folder,
            log_file=self.log_file,
        )

    def name(self) -> str:
        """Of a container; it is no other test's."""
        return f"{self.folder}/worker"

    async def said(self, text: str) -> None:
        """Wait for output."""
        await until(lambda: text in self.output)


@contextlib.asynccontextmanager
async def containers_here(folder: Path) -> AsyncIterator[Containers]:
    """They end with the context."""
    made = Containers(folder)
    try:
        yield made
    finally:
        await made.runtimes.close()
        assert marked(made.name()) == []


async def until(holds: Callable[[], object]) -> None:
    """Wait for what nobody tells of; TimeoutError."""
    async with asyncio.timeout(SECONDS):
        while not holds():
            await asyncio.sleep(0.01)


async def code_of(process: ContainerProcess) -> int:
    """The exit code of a process once it has ended."""
    async with asyncio.timeout(SECONDS):
        return await asyncio.shield(process.ended)
