"""Looks host names up in threads of their own, one for each name at a time.

While a name server does not answer, a look-up keeps its thread for as long as the C library is
patient, whoever has given up waiting. In the event loop's few threads such look-ups would leave
none for the weights.
"""

import asyncio
import contextlib
import socket
import threading
from typing import Any

from aiohttp.abc import AbstractResolver, ResolveResult

AddressInfo = tuple[Any, ...]  # as socket.getaddrinfo gives it


class NameLookUps(AbstractResolver):
    """A resolver for aiohttp's connectors. Belongs to one event loop."""

    def __init__(self) -> None:
        self._running: dict[tuple[str, int], asyncio.Future[list[AddressInfo]]] = {}

    async def addresses(self, host: str, port: int) -> frozenset[str]:
        """The addresses of `host`; OSError if its name is not known."""
        return frozenset(str(info[4][0]) for info in await self._look_up(host, port))

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
            for info in await self._look_up(host, port)
            if family in {socket.AF_UNSPEC, info[0]}
        ]

    async def close(self) -> None:
        """A look-up that runs ends by itself."""

    async def _look_up(self, host: str, port: int) -> list[AddressInfo]:
        key = host, port
        running = self._running.get(key)
        if running is None:
            running = self._running[key] = asyncio.get_running_loop().create_future()
            running.add_done_callback(lambda done: self._ended(key, done))
            threading.Thread(target=_work, args=(running, host, port), daemon=True).start()
        # Another caller may wait for the same answer.
        return await asyncio.shield(running)

    def _ended(self, key: tuple[str, int], done: asyncio.Future[list[AddressInfo]]) -> None:
        del self._running[key]
        if not done.cancelled():
            done.exception()  # every caller may have given up


def _work(answer: asyncio.Future[list[AddressInfo]], host: str, port: int) -> None:
    loop = answer.get_loop()
    with contextlib.suppress(RuntimeError):  # the loop has ended
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            loop.call_soon_threadsafe(answer.set_exception, error)
        else:
            loop.call_soon_threadsafe(answer.set_result, list(found))
