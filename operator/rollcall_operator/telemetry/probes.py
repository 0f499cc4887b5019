"""One small HTTP server: liveness, readiness and metrics."""

import asyncio
import logging
import time
from collections.abc import Callable

from aiohttp import web

from rollcall_operator.telemetry.metrics import OperatorMetrics

log = logging.getLogger(__name__)


class EventLoopProbe:
    """Detects that the event loop was blocked: a task that runs every second was late."""

    def __init__(self, *, bound: float = 10.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._bound = bound
        self._clock = clock
        self._last = clock()

    async def run(self) -> None:
        """Run once a second until cancelled, and log each delay above 1 s."""
        while True:
            self._last = self._clock()
            await asyncio.sleep(1.0)
            lag = self._clock() - self._last - 1.0
            if lag > 1.0:
                log.warning("The event loop was blocked for %.1f s", lag)

    def problem(self) -> str:
        """Why the loop is not responsive; empty when it is."""
        late = self._clock() - self._last
        return f"the event loop is {late:.0f} s late" if late > self._bound else ""


class ProbeServer:
    """Serves /healthz, /readyz and /metrics on one port until closed.

    `live` and `ready` return what is wrong; empty when nothing is.
    """

    def __init__(
        self, *, metrics: OperatorMetrics, live: Callable[[], str], ready: Callable[[], str]
    ) -> None:
        self._metrics = metrics
        self._checks = {"/healthz": live, "/readyz": ready}
        self._runner: web.AppRunner | None = None
        self._one_page = asyncio.Lock()
        self.port = 0

    async def start(self, *, host: str, port: int) -> None:
        """Listen on `host`, empty for all addresses; `port` 0 picks a free one (see `self.port`).

        Raises OSError.
        """
        app = web.Application()
        app.router.add_get("/healthz", self._probe)
        app.router.add_get("/readyz", self._probe)
        app.router.add_get("/metrics", self._expose)
        runner = web.AppRunner(app, access_log=None, auto_decompress=False)
        await runner.setup()
        site = web.TCPSite(runner, host or None, port)
        await site.start()
        self._runner = runner
        self.port = runner.addresses[0][1]

    async def close(self) -> None:
        """Stop listening; without effect before `start`."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _probe(self, request: web.Request) -> web.Response:
        problem = self._checks[request.path]()
        if problem:
            return web.Response(status=503, text=problem + "\n")
        return web.Response(text="ok\n")

    async def _expose(self, request: web.Request) -> web.Response:
        """With thousands of jobs the page takes a second: reconciles go on meanwhile.

        `name[]` picks series, as with the servers of Prometheus's own clients.
        """
        names = request.query.getall("name[]", [])
        async with self._one_page:
            body, content_type = await asyncio.to_thread(self._metrics.expose, names)
        return web.Response(body=body, headers={"Content-Type": content_type})
