"""A process' end of the socket to the program that started it by the library `rollcall`."""

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any, Generic, TypeVar

from rollcall_protocol.wire.library_link import LONGEST_LINE, from_line, to_line

M = TypeVar("M")


class LibraryConnection(Generic[M]):
    """Lines both ways; those that come are of class M. Belongs to one event loop."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        expected: tuple[type[M], ...],
    ) -> None:
        self._reader, self._writer, self._expected = reader, writer, expected

    @classmethod
    async def open(cls, descriptor: int, expected: tuple[type[M], ...]) -> "LibraryConnection[M]":
        """Over the socket that this process inherited as `descriptor`."""
        inherited = socket.socket(fileno=descriptor)
        streams = await asyncio.open_unix_connection(sock=inherited, limit=LONGEST_LINE)
        return cls(*streams, expected)

    def send(self, message: Any) -> None:
        """Nothing happens once the program is gone: the messages end, too."""
        if not self._writer.is_closing():
            self._writer.write(to_line(message))

    async def messages(self) -> AsyncIterator[M]:
        """Until the program's end is closed. CodecError for what the library does not send."""
        while True:
            try:
                line = await self._reader.readline()
            except ConnectionError:
                return
            if not line:
                return
            yield from_line(line, self._expected)
