"""Decodes and encodes messages, long ones in threads.

Parsing a manifest of many tensors takes long enough to hold up an event loop.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from rollcall_protocol.wire.messages import CoordinatorMessage, Stage, dumps, loads

M = TypeVar("M")
T = TypeVar("T", str, bytes, str | bytes)

LONG_TEXT = 1 << 18  # bytes; parsing takes some milliseconds
LONG_MANIFEST = 1000  # tensors


async def parsed(text: T, parse: Callable[[T], M]) -> M:
    """What `parse` makes of `text`, in a thread if that is long."""
    if len(text) < LONG_TEXT:
        return parse(text)
    return await asyncio.to_thread(parse, text)


async def load_message(text: str | bytes, expected: tuple[type[M], ...]) -> M:
    """Decode like `loads`, in a thread if `text` is long."""
    return await parsed(text, lambda whole: loads(whole, expected))


def dump_message(message: CoordinatorMessage) -> str | Awaitable[str]:
    """Encode like `dumps`; a long message gives an awaitable that several tasks may await."""
    if isinstance(message, Stage) and len(message.manifest.tensors) > LONG_MANIFEST:
        return asyncio.ensure_future(asyncio.to_thread(dumps, message))
    return dumps(message)
