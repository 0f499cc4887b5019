"""Reads the bodies that pods post to the coordinator, each within a time."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from aiohttp import web

from rollcall_protocol.wire.json_codec import CodecError

T = TypeVar("T")

READ_SECONDS = 10.0  # a rollout gives an attempt up after so long


async def read_posted(
    request: web.Request,
    parse: Callable[[bytes], Awaitable[T]],
    *,
    refused: Callable[[str], None],
    malformed: Callable[[str], None] = lambda _: None,
) -> T | web.Response:
    """What `parse` makes of the body, or the answer: 400 if malformed, 408 if it comes slowly.

    `parse` raises CodecError. HTTPRequestEntityTooLarge for a longer body than the application
    takes. `refused` counts by kind; `malformed` gets what is wrong with a body that is read.
    """
    try:
        async with asyncio.timeout(READ_SECONDS):
            body = await request.read()
        return await parse(body)
    except CodecError as error:
        refused("malformed")
        malformed(str(error))
        return web.json_response({"error": str(error)}, status=400)
    except web.HTTPRequestEntityTooLarge:
        refused("long_body")
        raise
    except TimeoutError:
        refused("slow_body")
        return web.json_response({"error": "the request comes too slowly"}, status=408)
