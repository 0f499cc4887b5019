"""A watch of two pods on a stand-in for an API server."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from rollcall_operator.kube.client import Object
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


class Watched:
    """A watch of pods `a` and `b`, listed at version 7, and what it has reported since."""

    def __init__(self) -> None:
        self.server = ApiServer(version=7, pods=[pod("a", 1), pod("b", 2)])
        self.differences: list[Difference] = []
        self.watch: Watch[str]

    @asynccontextmanager
    async def run(self, folder: Path) -> AsyncIterator["Watched"]:
        async with client_of(folder, self.server.answer) as client:
            self.watch = Watch(
                client,
                PODS,
                reduce=name_and_version,
                changed=lambda before, now: self.differences.append((before, now)),
                delay=lambda _: 0.01,
            )
            running = asyncio.create_task(self.watch.run())
            try:
                await until(lambda: self.server.watched_from == ["7"])
                self.differences.clear()
                yield self
                assert not running.done(), running.exception()
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)

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
