"""A link between two hosts that can be cut and mended: what was sent meanwhile arrives late."""

import asyncio
from functools import partial
from types import TracebackType
from typing import Self

CHUNK_BYTES = 1 << 16


class Proxy:
    """Relays TCP from `address` to `target`, on each of `ports`. While cut, connections stay open
    and nothing passes, as with a network that drops packets.
    """

    def __init__(self, *, address: str, target: str, ports: tuple[int, ...]) -> None:
        self._address, self._target, self._ports = address, target, ports
        self._passes = asyncio.Event()
        self._passes.set()
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def cut(self) -> None:
        """Let nothing pass."""
        self._passes.clear()

    def mend(self) -> None:
        """Let everything pass again."""
        self._passes.set()

    async def __aenter__(self) -> Self:
        for port in self._ports:
            self._servers.append(
                await asyncio.start_server(partial(self._relay, port), self._address, port)
            )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for server in self._servers:
            server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _relay(
        self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await self._passes.wait()
        try:
            there_reader, there = await asyncio.open_connection(self._target, port)
        except OSError:
            writer.transport.abort()
            return
        for source, sink in ((reader, there), (there_reader, writer)):
            task = asyncio.create_task(self._copy(source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _copy(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(CHUNK_BYTES):
                await self._passes.wait()
                sink.write(data)
                await sink.drain()
        except OSError:
            pass  # either end is gone: so is the other
        finally:
            await self._passes.wait()
            sink.transport.abort()
