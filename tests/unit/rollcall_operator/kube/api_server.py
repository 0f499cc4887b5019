"""A stand-in for an API server's LIST and WATCH of pods, which a test has fail as it likes."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from rollcall_operator.kube.client import KubeClient
from rollcall_operator.kube.connection import connect
from rollcall_operator.kube.transport import Transport
from tests.unit.kubeconfig import write_kubeconfig

Pod = dict[str, Any]

Difference = tuple[str | None, str | None]
"""Of a watch that keeps `name_and_version`: before and now."""


def pod(name: str, version: int, **labels: str) -> Pod:
    return {
        "metadata": {
            "namespace": "ns",
            "name": name,
            "uid": f"uid-{name}",
            "resourceVersion": str(version),
            "labels": labels,
        }
    }


def name_and_version(found: Pod) -> str:
    return f"{found['metadata']['name']}@{found['metadata']['resourceVersion']}"


@dataclass
class ApiServer:
    """`version` and `pods` are what a LIST answers. `refusals` are answers in place of requests.

    Events go out on all WATCHes that are open; while there is none, on the next one.
    """

    version: int = 1
    pods: list[Pod] = field(default_factory=list)
    page: int = 500
    refusals: list[int] = field(default_factory=list)
    lists: int = 0
    watched_from: list[str] = field(default_factory=list)
    queries: list[dict[str, str]] = field(default_factory=list)
    _open: list[asyncio.Queue[bytes | None]] = field(default_factory=list)
    _waiting: list[bytes | None] = field(default_factory=list)

    def send(self, kind: str, found: Pod) -> None:
        """An event for the WATCHes."""
        self.send_line(json.dumps({"type": kind, "object": found}).encode() + b"\n")

    def send_line(self, line: bytes | None) -> None:
        """Anything for the WATCHes; None ends them."""
        for events in self._open:
            events.put_nowait(line)
        if not self._open:
            self._waiting.append(line)
        elif line is None:
            self._open.clear()

    def end_watch(self) -> None:
        """End the WATCHes that are open, or the next one."""
        self.send_line(None)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Any GET."""
        if self.refusals:
            return web.json_response({"message": "no"}, status=self.refusals.pop(0))
        self.queries.append(dict(request.query))
        if request.query.get("watch") == "true":
            return await self._watch(request)
        self.lists += 1
        start = int(request.query.get("continue", "0"))
        rest = start + self.page if start + self.page < len(self.pods) else ""
        metadata = {"resourceVersion": str(self.version), "continue": str(rest)}
        items = self.pods[start : start + self.page]
        return web.json_response({"metadata": metadata, "items": items})

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        self.watched_from.append(request.query["resourceVersion"])
        response = web.StreamResponse()
        await response.prepare(request)
        while self._waiting:
            event = self._waiting.pop(0)
            if event is None:
                return response
            await response.write(event)
        events: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._open.append(events)
        try:
            while (event := await events.get()) is not None:
                await response.write(event)
        finally:  # a client that leaves gets no later event, but the next WATCH does
            if events in self._open:
                self._open.remove(events)
        return response


@asynccontextmanager
async def client_of(
    folder: Path, answer: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> AsyncIterator[KubeClient]:
    """A client of an API server that answers every GET so."""
    application = web.Application()
    application.router.add_get("/{path:.+}", answer)
    runner = web.AppRunner(application, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server = f"http://127.0.0.1:{runner.addresses[0][1]}"
    connection = await connect(kubeconfig=write_kubeconfig(folder, server))
    try:
        yield KubeClient(Transport(connection))
    finally:
        await connection.close()
        await runner.cleanup()


async def until(happened: Callable[[], bool]) -> None:
    """Wait for it, at most 5 s."""
    async with asyncio.timeout(5):
        while not happened():
            await asyncio.sleep(0.005)
