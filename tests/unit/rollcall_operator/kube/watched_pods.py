"""A watch of pods on a stand-in for an API server."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from rollcall_operator.kube.client import KubeClient, Object
from rollcall_operator.kube.resources import PODS
from rollcall_operator.kube.watch import Watch
from tests.unit.rollcall_operator.kube.api_server import (
    ApiServer,
    Difference,
    client_of,
    name_and_version,
    pod,
    until,
)


@asynccontextmanager
async def watching(
    client: KubeClient, *, delay: Callable[[int], float] = lambda _: 0.01
) -> AsyncIterator[tuple[Watch[str], list[Difference]]]:
    """A watch of pods that runs, and what it reports, as it comes."""
    differences: list[Difference] = []
    watch = Watch(
        client,
        PODS,
        namespace="ns",
        labels="rollcall.dev/job",
        reduce=name_and_version,
        changed=lambda before, now: differences.append((before, now)),
        delay=delay,
    )
    running = asyncio.create_task(watch.run())
    try:
        yield watch, differences
        assert not running.done(), running.exception()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


class Watched:
    """A watch of pods `a` and `b`, listed at version 7, and what it has reported since."""

    def __init__(self) -> None:
        self.server = ApiServer(version=7, pods=[pod("a", 1), pod("b", 2)])
        self.differences: list[Difference]
        self.watch: Watch[str]

    @asynccontextmanager
    async def run(self, folder: Path) -> AsyncIterator["Watched"]:
        async with (
            client_of(folder, self.server.answer) as client,
            watching(client) as (self.watch, self.differences),
        ):
            await until(lambda: self.server.watched_from == ["7"])
            self.differences.clear()
            yield self

    async def reaches(self, version: int) -> list[Difference]:
        """What was reported until the watch got there."""
        await until(lambda: self.watch.reached == version)
        reported = self.differences[:]
        self.differences.clear()
        return reported

    async def lists_again(self, version: int, *pods: Object) -> list[Difference]:
        """The API server has forgotten where the watch was."""
        self.server.version, self.server.pods = version, list(pods)
        self.server.send("ERROR", {"metadata": {}, "code": 410, "reason": "Expired"})
        return await self.reaches(version)
