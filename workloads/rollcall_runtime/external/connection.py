"""The coordinator's end of the socket to the trainer's process."""

import asyncio
import socket
from collections.abc import AsyncIterator

from rollcall_protocol.wire.external_trainer import (
    LIBRARY_MESSAGES,
    LONGEST_LINE,
    CoordinatorMessage,
    LibraryMessage,
    from_line,
    to_line,
)


class LibraryConnection:
    """Lines both ways. Belongs to one event loop."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def open(cls, descriptor: int) -> "LibraryConnection":
        """Over the socket that this process inherited as `descriptor`."""
        inherited = socket.socket(fileno=descriptor)
        return cls(*await asyncio.open_unix_connection(sock=inherited, limit=LONGEST_LINE))

    def send(self, message: CoordinatorMessage) -> None:
        """Nothing happens once the trainer's process is gone: the messages end, too."""
        if not self._writer.is_closing():
            self._writer.write(to_line(message))

    async def messages(self) -> AsyncIterator[LibraryMessage]:
        """Until the trainer's end is closed. CodecError for what the library does not send."""
        while True:
            try:
                line = await self._reader.readline()
            except ConnectionError:
                return
            if not line:
                return
            yield from_line(line, LIBRARY_MESSAGES)
