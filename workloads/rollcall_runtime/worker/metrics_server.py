"""The port of probes and metrics, on a thread and an event loop of its own.

So it answers while unauthenticated clients fill the worker's endpoints, or messages take long,
must not have the kubelet kill the worker.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from rollcall_protocol.pod_contract import METRICS_PORT
from rollcall_protocol.wire.addresses import host_port
from rollcall_runtime.worker.bounded_listener import BACKLOG, BoundedRunner
from rollcall_runtime.worker.query_answers import Answer, QueryAnswers
from rollcall_runtime.worker.telemetry import Metrics

log = logging.getLogger(__name__)

STOP_SECONDS = 1.0
START_SECONDS = 30.0
COLLECT_SECONDS = 10.0
BEAT_SECONDS = 1.0
STUCK_SECONDS = 60.0  # that the worker's event loop may not run for

HealthCheck = Callable[[], str]
"""Returns an empty string, or why the probe fails. Called in the server's thread."""


class MetricsServer:
    """/metrics, /healthz and /readyz on a pod's address.

    A worker whose own event loop has not run for STUCK_SECONDS is not healthy. Metrics are
    collected in that loop; `engines` gives more of them, in Prometheus' text format, or an OSError
    or RuntimeError. `files` are served by route, 404 before they are there; so are `answers`, see
    `QueryAnswers`.
    """

    def __init__(
        self,
        metrics: Metrics,
        *,
        healthy: HealthCheck,
        ready: HealthCheck,
        engines: Callable[[], Awaitable[bytes]] | None = None,
        files: Mapping[str, Path] | None = None,
        answers: Mapping[str, Answer] | None = None,
    ) -> None:
        self._engines, self._files, self._answers = engines, files or {}, answers or {}
        self._metrics, self._healthy, self._ready = metrics, healthy, ready
        self._worker: asyncio.AbstractEventLoop | None = None
        self._alive = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._runner: BoundedRunner | None = None
        self._beats: asyncio.Task[None] | None = None

    async def start(self, address: str, port: int = METRICS_PORT) -> None:
        """Listen on `address`, at a free port if it is 0; OSError if the port is taken."""
        self._worker, self._alive = asyncio.get_running_loop(), time.monotonic()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="probes", daemon=True)
        self._thread.start()
        listening = asyncio.run_coroutine_threadsafe(self._listen(address, port), self._loop)
        async with asyncio.timeout(START_SECONDS):
            await asyncio.wrap_future(listening)

    async def stop(self) -> None:
        """Stop listening; does nothing if it never listened."""
        if self._loop is None or self._thread is None:
            return
        loop, self._loop = self._loop, None
        closing = asyncio.run_coroutine_threadsafe(self._close(), loop)
        await asyncio.wrap_future(closing)
        loop.call_soon_threadsafe(loop.stop)
        await asyncio.to_thread(self._thread.join)
        loop.close()

    # --- in the server's thread ------------------------------------------------------------------

    async def _listen(self, address: str, port: int) -> None:
        application = web.Application()
        application.router.add_get("/metrics", self._serve)
        application.router.add_get("/healthz", _answer(self._health))
        application.router.add_get("/readyz", _answer(self._ready))
        for route, path in self._files.items():
            application.router.add_get(route, _give(path))
        for route, answer in self._answers.items():
            application.router.add_get(route, QueryAnswers(answer).handle)
        self._runner = BoundedRunner(
            application, refused=lambda _: None, shutdown_timeout=STOP_SECONDS
        )
        await self._runner.setup()
        await web.TCPSite(self._runner, address, port, backlog=BACKLOG).start()
        if port == 0:
            log.info("metrics: http://%s/metrics", host_port(address, self._runner.addresses[0][1]))
        self._beats = asyncio.get_running_loop().create_task(self._watch())

    async def _close(self) -> None:
        if self._beats is not None:
            self._beats.cancel()
            await asyncio.gather(self._beats, return_exceptions=True)
        if self._runner is not None:
            await self._runner.cleanup()

    async def _watch(self) -> None:
        """Have the worker's loop say that it runs."""
        while self._worker is not None and not self._worker.is_closed():
            self._worker.call_soon_threadsafe(self._beat)
            await asyncio.sleep(BEAT_SECONDS)

    def _beat(self) -> None:
        self._alive = time.monotonic()

    def _health(self) -> str:
        silent = time.monotonic() - self._alive
        if silent > STUCK_SECONDS:
            return f"the worker's event loop has not run for {silent:.0f} s"
        return self._healthy()

    async def _serve(self, _: web.Request) -> web.Response:
        if self._worker is None:
            raise web.HTTPServiceUnavailable
        collecting = asyncio.run_coroutine_threadsafe(self._collect(), self._worker)
        try:
            async with asyncio.timeout(COLLECT_SECONDS):
                body = await asyncio.wrap_future(collecting)
        except TimeoutError:
            return web.Response(text="the worker is too busy to collect metrics", status=503)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _collect(self) -> bytes:
        own = generate_latest(self._metrics.registry)
        if self._engines is None:
            return own
        try:
            return own + await self._engines()
        except (OSError, RuntimeError) as error:
            log.warning("/metrics is without the engine's own: %s", error or type(error).__name__)
            return own


def _give(path: Path) -> Callable[[web.Request], Any]:
    async def give(_: web.Request) -> web.StreamResponse:
        if not await asyncio.to_thread(path.is_file):
            raise web.HTTPNotFound
        return web.FileResponse(path)

    return give


def _answer(check: HealthCheck) -> Callable[[web.Request], Any]:
    async def answer(_: web.Request) -> web.Response:
        problem = check()
        return web.Response(text=problem or "ok", status=503 if problem else 200)

    return answer
