"""Long messages are read and written in threads: an event loop that parses one answers nobody."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from rollcall_protocol.wire.messages import CoordinatorMessage, Stage, dumps, loads

M = TypeVar("M")

LONG_TEXT = 1 << 18  # bytes; some milliseconds
LONG_MANIFEST = 1000  # tensors


async def read(text: str, expected: tuple[type[M], ...]) -> M:
    """Like `loads`."""
    if len(text) < LONG_TEXT:
        return loads(text, expected)
    return await asyncio.to_thread(loads, text, expected)


def write(message: CoordinatorMessage) -> str | Awaitable[str]:
    """Like `dumps`; what is awaitable may be awaited by many."""
    if isinstance(message, Stage) and len(message.manifest.tensors) > LONG_MANIFEST:
        return asyncio.ensure_future(asyncio.to_thread(dumps, message))
    return dumps(message)
