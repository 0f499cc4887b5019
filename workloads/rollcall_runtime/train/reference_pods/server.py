"""A reference pod's port: log-probabilities for the ranks of the trainer."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from aiohttp import HttpVersion11, web

from rollcall_protocol.pod_contract import LOGPROBS_ROUTE, REFERENCE_PORT
from rollcall_runtime.train.reference_pods.exchange import (
    ExchangeError,
    decode_request,
    encode_answer,
)
from rollcall_runtime.worker.bounded_listener import BACKLOG, MAX_HEADER_BYTES, BoundedRunner

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor

    from torch import Tensor

    from rollcall_runtime.train.reference_pods.exchange import RequestBounds
    from rollcall_runtime.train.reference_pods.metrics import ReferenceMetrics
    from rollcall_runtime.train.train_batch import TrainBatch
    from rollcall_runtime.worker.auth import Authenticator
    from rollcall_runtime.worker.identity.tls import TlsContext

log = logging.getLogger(__name__)

AT_ONCE = 8  # requests that are read, wait, or are computed
READ_SECONDS = 30.0
STOP_SECONDS = 30.0


class ReferenceServer:
    """Computes one request at a time with `logprobs`, in `thread`.

    200: an answer; 401 and 403 for callers that are no trainer rank to `authenticator`;
    400 for a request that is not within `bounds`, 413 for one that is too long, 408 for one that
    comes too slowly; 422 if the model gives numbers that are not finite; 503 while AT_ONCE others
    are there. After an error of the model itself `failed` has it, and the process should end.
    """

    def __init__(
        self,
        *,
        authenticator: Authenticator,
        bounds: RequestBounds,
        logprobs: Callable[[TrainBatch], Tensor],
        thread: Executor,
        metrics: ReferenceMetrics,
        certificate: TlsContext | None = None,
    ) -> None:
        self._authenticator = authenticator
        self._bounds, self._logprobs, self._thread = bounds, logprobs, thread
        self._metrics, self._there = metrics, 0
        self.failed: asyncio.Future[None]
        application = web.Application(client_max_size=bounds.request_bytes)
        application.router.add_post(
            LOGPROBS_ROUTE,
            authenticator.guard(LOGPROBS_ROUTE, self._serve),
            expect_handler=self._admit,
        )
        self._runner = BoundedRunner(
            application,
            refused=self._count_refused,
            shutdown_timeout=STOP_SECONDS,
            read_bufsize=MAX_HEADER_BYTES,
            tls=certificate,
        )

    async def start(self, address: str, port: int = REFERENCE_PORT) -> None:
        """Listen on `address`; OSError if the port is taken."""
        self.failed = asyncio.get_running_loop().create_future()
        await self._runner.setup()
        await web.TCPSite(self._runner, address, port, backlog=BACKLOG).start()

    async def stop(self) -> None:
        """Take no more requests, and answer those that are there within STOP_SECONDS."""
        await self._runner.cleanup()

    def _count_refused(self, what: str) -> None:
        self._metrics.refused(what=what).inc()

    def _refuse(self, status: int, what: str, problem: str) -> web.Response:
        self._count_refused(what)
        return web.json_response({"error": problem}, status=status)

    async def _admit(self, request: web.Request) -> web.StreamResponse | None:
        """Tell a client that asks first to send its body (None), or answer why not."""
        refusal = self._authenticator.refuse(LOGPROBS_ROUTE, request) or self._refuse_if_busy()
        if refusal is None and request.version >= HttpVersion11:
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            request.writer.output_size = 0
        return refusal

    def _refuse_if_busy(self) -> web.Response | None:
        if self._there < AT_ONCE:
            return None
        return self._refuse(503, "busy", f"{AT_ONCE} requests are here already")

    async def _serve(self, request: web.Request) -> web.Response:
        refusal = self._refuse_if_busy()
        if refusal is not None:
            return refusal
        self._there += 1
        try:
            return await self._answer(request)
        finally:
            self._there -= 1

    async def _answer(self, request: web.Request) -> web.Response:
        try:
            async with asyncio.timeout(READ_SECONDS):
                batch = decode_request(await request.read(), self._bounds)
        except ExchangeError as error:
            return self._refuse(400, "malformed", str(error))
        except web.HTTPRequestEntityTooLarge:
            most = self._bounds.request_bytes
            return self._refuse(413, "too_long", f"a request has {most} bytes at most")
        except TimeoutError:
            return self._refuse(408, "slow", f"no whole request within {READ_SECONDS:.0f} s")
        began = time.perf_counter()
        loop = asyncio.get_running_loop()
        try:
            found = await loop.run_in_executor(self._thread, self._logprobs, batch)
        except Exception as error:  # noqa: BLE001 - the process ends with it
            if not self.failed.done():
                self.failed.set_exception(error)
            return self._refuse(500, "failed", f"{type(error).__name__}: {error}")
        if not bool(found[batch.mask].isfinite().all()):
            return self._refuse(422, "not_finite", "its log-probabilities are not finite")
        self._metrics.answered(rows=batch.rows, seconds=time.perf_counter() - began)
        return web.Response(body=encode_answer(found))
