"""The ranks of a trainer watch each other: if one dies or hangs, all of them start again.

Each other rank holds a stream to rank 0, and both ends send beats on it. A collective fails
when a peer died, too, but only while one is under way, and for a stopped peer after its long
timeout.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable

import aiohttp
from aiohttp import web

from rollcall_protocol.membership.stretched_bounds import SilenceBound
from rollcall_runtime.membership.liveness import watch_silence
from rollcall_runtime.worker.asyncio_helpers import first_of
from rollcall_runtime.worker.auth import current_caller, impersonation
from rollcall_runtime.worker.http_client import plain_session
from rollcall_runtime.worker.identity.own_tokens import TokenSource, bearer
from rollcall_runtime.worker.identity.tls import TlsContext

CONNECT_SECONDS = 60.0  # for all ranks, once they have met
RETRY_SECONDS = 0.1
OPEN_SECONDS = CLOSE_SECONDS = 1.0
GRACE_SECONDS = 0.05
# A restart of the gang costs far more than a wrongly suspected rollout.
PATIENCE = 3.0
_BEAT, _BYE = "beat", "bye"
MAX_FRAME_BYTES = 64


class GangBrokenError(RuntimeError):
    """Another rank died or hangs, so that this one cannot go on either."""


class _Stream:
    """One end of a stream between two ranks; times are seconds. `bound` stretches on a busy machine
    (`SilenceBound`).
    """

    def __init__(
        self,
        socket: web.WebSocketResponse | aiohttp.ClientWebSocketResponse,
        *,
        heartbeat: float,
        bound: float,
    ) -> None:
        self._socket, self._heartbeat = socket, heartbeat
        self._bound = SilenceBound(bound, heartbeat=heartbeat)
        self._received_at = time.monotonic()

    async def run(self, leaving: asyncio.Event) -> None:
        """Beat and listen until either side says farewell. ConnectionError when the other is lost.

        Nothing for `bound` seconds counts as lost too.
        """
        silence = watch_silence(self._bound, lambda: self._received_at, grace=GRACE_SECONDS)
        try:
            await first_of(self._beat(leaving), self._listen(), silence)
        finally:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_SECONDS):
                    await self._socket.close()

    async def _beat(self, leaving: asyncio.Event) -> None:
        while not leaving.is_set():
            await self._send(_BEAT)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._heartbeat):
                    await leaving.wait()
        await self._send(_BYE)

    async def _send(self, text: str) -> None:
        try:
            await self._socket.send_str(text)
        except ConnectionError as error:  # as `_listen` says it, whichever is first to see it
            raise ConnectionResetError("connection lost") from error

    async def _listen(self) -> None:
        async for frame in self._socket:
            now = time.monotonic()
            self._bound.silent(now - self._received_at, now)
            self._received_at = now
            if frame.type is aiohttp.WSMsgType.TEXT and frame.data == _BYE:
                return
        raise ConnectionResetError("connection lost")


class Gang:
    """Rank 0's side: `size` ranks, itself included, `processes` in a pod. Times are seconds.

    `refused` counts requests of what is no rank, of a pod in the name of another's, and of a rank
    that has a stream open.
    """

    def __init__(
        self,
        size: int,
        *,
        heartbeat: float,
        suspect_after: float,
        refused: Callable[[str], None],
        processes: int = 1,
    ) -> None:
        self._ranks = {str(rank): rank for rank in range(1, size)}
        self._missing = set(self._ranks.values())
        self._open: set[int] = set()
        self._refused, self._processes = refused, processes
        self._heartbeat, self._bound = heartbeat, PATIENCE * suspect_after
        self._leaving = asyncio.Event()
        self._broken: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._complete = asyncio.Event()
        if not self._missing:
            self._complete.set()

    async def watch(self) -> None:
        """Raise GangBrokenError when another rank is lost; return when `leave` was called."""
        await first_of(self._raise_if_broken(), self._all_connect(), self._leaving_set())

    def leave(self) -> None:
        """Training is over: ranks may go."""
        self._leaving.set()

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Handle another rank's stream; `?rank=` says whose it is: one of the caller's own.

        403, 404 and 409 end nothing.
        """
        rank = self._ranks.get(request.query.get("rank", ""))
        if rank is None:
            self._refused("gang_rank")
            problem = f"rank is not a number from 1 to {len(self._ranks)}"
            return web.json_response({"error": problem}, status=404)
        caller = current_caller()
        if rank // self._processes != caller.trainer_ordinal:
            problem = f"pod {caller.identity.pod} says it is rank {rank}"
            return impersonation(self._refused, problem)
        if rank in self._open:
            self._refused("gang_rank")
            problem = f"rank {rank} has a stream open"
            return web.json_response({"error": problem}, status=409)
        self._open.add(rank)
        try:
            return await self._hold(rank, request)
        finally:
            self._open.discard(rank)

    async def _hold(self, rank: int, request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse(max_msg_size=MAX_FRAME_BYTES, compress=False)
        await socket.prepare(request)
        self._missing.discard(rank)
        if not self._missing:
            self._complete.set()
        problem = "connection lost"  # if this handler is cancelled for that
        try:
            stream = _Stream(socket, heartbeat=self._heartbeat, bound=self._bound)
            await stream.run(self._leaving)
            problem = ""
        except (OSError, aiohttp.ClientError) as error:
            problem = str(error) or type(error).__name__
        finally:
            if problem:
                self._lost(f"rank {rank}: {problem}")
        return socket

    def _lost(self, reason: str) -> None:
        if not self._broken.done():
            self._broken.set_result(reason)

    async def _raise_if_broken(self) -> None:
        raise GangBrokenError(await self._broken)

    async def _leaving_set(self) -> None:
        await self._leaving.wait()

    async def _all_connect(self) -> None:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await self._complete.wait()
        except TimeoutError:
            ranks = ", ".join(str(rank) for rank in sorted(self._missing))
            raise GangBrokenError(f"rank {ranks}: no stream in {CONNECT_SECONDS:g} s") from None
        await asyncio.Event().wait()


async def watch_leader(
    url: str,
    *,
    rank: int,
    token: TokenSource,
    tls: TlsContext,
    heartbeat: float,
    suspect_after: float,
    leaving: asyncio.Event,
) -> None:
    """Another rank's side: hold a stream to rank 0 at `url` until either leaves.

    `tls` is for an https `url`.

    Raises GangBrokenError when rank 0 is lost, or does not listen within CONNECT_SECONDS.
    """
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=OPEN_SECONDS)
    async with plain_session(timeout=timeout) as session:
        socket = await _connect(session, f"{url}?rank={rank}", token, tls, leaving)
        if socket is None:
            return
        stream = _Stream(socket, heartbeat=heartbeat, bound=PATIENCE * suspect_after)
        try:
            await stream.run(leaving)
        except (OSError, aiohttp.ClientError) as error:
            raise GangBrokenError(f"rank 0: {str(error) or type(error).__name__}") from error


async def _connect(
    session: aiohttp.ClientSession,
    url: str,
    token: TokenSource,
    tls: TlsContext,
    leaving: asyncio.Event,
) -> aiohttp.ClientWebSocketResponse | None:
    deadline = time.monotonic() + CONNECT_SECONDS
    while not leaving.is_set():
        try:
            return await session.ws_connect(url, headers=bearer(token()), ssl=tls())
        except (OSError, aiohttp.ClientError) as error:  # it resumes, or opens its engines
            if time.monotonic() > deadline:
                raise GangBrokenError(f"rank 0 does not listen: {error}") from error
        await asyncio.sleep(RETRY_SECONDS)
    return None
