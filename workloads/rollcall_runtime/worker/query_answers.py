"""Answers of some megabytes to HTTP queries of unauthenticated clients, at a bounded cost."""

import asyncio
import time
from collections.abc import Callable, Mapping

from aiohttp import web

Answer = Callable[[Mapping[str, str]], bytes]
"""Answers a query in a thread. FileNotFoundError: there is nothing yet; ValueError: the query is
wrong.
"""
WAIT_SECONDS = 5.0  # for the answers before
READ_SECONDS = 5.0  # that a client may take
SHARE = 0.1  # of the time in which answers are made


class QueryAnswers:
    """One answer at a time: the next is made when a client has read this one, or is cut off.

    So clients, however many, cost one answer's memory and a SHARE of a core.
    """

    def __init__(self, answer: Answer) -> None:
        self._answer, self._one = answer, asyncio.Lock()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """400 for a wrong query, 404 before there is something, 503 after WAIT_SECONDS."""
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await self._one.acquire()
        except TimeoutError as error:
            raise web.HTTPServiceUnavailable(text="others are being answered") from error
        try:
            return await self._give(request)
        finally:
            self._one.release()

    async def _give(self, request: web.Request) -> web.StreamResponse:
        began = time.monotonic()
        try:
            found = await asyncio.to_thread(self._answer, request.query)
        except FileNotFoundError as error:
            raise web.HTTPNotFound from error
        except ValueError as error:
            raise web.HTTPBadRequest(text=str(error)) from error
        seconds = time.monotonic() - began
        response = web.StreamResponse(headers={"Content-Type": "application/jsonl"})
        response.content_length = len(found)
        try:
            async with asyncio.timeout(READ_SECONDS):
                await response.prepare(request)
                await response.write(found)
                await response.write_eof()
        except (TimeoutError, ConnectionError):
            if request.transport is not None:
                request.transport.abort()
        await asyncio.sleep(seconds * (1 / SHARE - 1))
        return response
