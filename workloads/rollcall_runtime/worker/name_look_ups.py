"""Looks host names up in threads of their own, one for each name at a time.

While a name server does not answer, a look-up keeps its thread for as long as the C library is
patient, even when its callers have given up waiting. In the event loop's few threads such look-ups
would leave none for the weights.
"""

import asyncio
import contextlib
import socket
import threading
from typing import Any

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

AddressInfo = tuple[Any, ...]  # as socket.getaddrinfo gives it
PATIENCE = 1.0  # seconds after which a connection goes to where the name led before


class NameLookUps(AbstractResolver):
    """A resolver for aiohttp's connectors. Belongs to one event loop.

    While the name server is silent, or says that it cannot answer now, connections go to where the
    name led last.
    """

    def __init__(self) -> None:
        self._last: dict[str, list[AddressInfo]] = {}
        self._running: dict[str, asyncio.Future[list[AddressInfo]]] = {}

    async def addresses(self, host: str) -> frozenset[str]:
        """The addresses of `host`; OSError if its name is not known."""
        return frozenset(str(info[4][0]) for info in await self._look_up(host))

    def connector(self) -> aiohttp.TCPConnector:
        """Of a session that looks names up for each connection: that of the coordinator leads to
        another pod when rank 0 was replaced.
        """
        return aiohttp.TCPConnector(use_dns_cache=False, resolver=self)

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        return [
            ResolveResult(
                hostname=host,
                host=str(info[4][0]),
                port=port,
                family=info[0],
                proto=info[2],
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for info in await self._now_or_last(host)
            if family in {socket.AF_UNSPEC, info[0]}
        ]

    async def close(self) -> None:
        """A look-up that runs ends by itself."""

    async def _now_or_last(self, host: str) -> list[AddressInfo]:
        last = self._last.get(host)
        try:
            async with asyncio.timeout(PATIENCE if last is not None else None):
                return await self._look_up(host)
        except TimeoutError:
            if last is None:
                raise
        except socket.gaierror as error:
            if last is None or error.errno != socket.EAI_AGAIN:
                raise
        return last

    async def _look_up(self, host: str) -> list[AddressInfo]:
        running = self._running.get(host)
        if running is None:
            running = self._running[host] = asyncio.get_running_loop().create_future()
            running.add_done_callback(lambda done: self._ended(host, done))
            threading.Thread(target=_work, args=(running, host), daemon=True).start()
        # Another caller may wait for the same answer.
        return await asyncio.shield(running)

    def _ended(self, host: str, done: asyncio.Future[list[AddressInfo]]) -> None:
        del self._running[host]
        if not done.cancelled() and done.exception() is None:  # every caller may have given up
            self._last[host] = done.result()


def _work(answer: asyncio.Future[list[AddressInfo]], host: str) -> None:
    loop = answer.get_loop()
    with contextlib.suppress(RuntimeError):  # the loop has ended
        try:
            found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except OSError as error:
            loop.call_soon_threadsafe(answer.set_exception, error)
        else:
            loop.call_soon_threadsafe(answer.set_result, list(found))
