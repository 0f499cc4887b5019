"""The answer to a WATCH: a line for each event, until its time is up or the client is gone.

https://kubernetes.io/docs/reference/using-api/api-concepts/#watch-bookmarks
"""

import asyncio
import math
from collections.abc import Iterable
from typing import Any

import orjson
from aiohttp import web

from rollcall_local.api_server.change_log import Event, ServedWatch
from rollcall_local.api_server.errors import ApiStatusError
from rollcall_operator.kube.resources import Resource

Object = dict[str, Any]

BOOKMARK_SECONDS = 30.0
"""Without an event, after which a bookmark says how far the watch is."""
SLOW_SECONDS = 30.0
"""That a client may take to read what was sent."""


class WatchStream:
    """One answer. What waits to be sent to a client is bounded, and so is how long it waits."""

    def __init__(self, request: web.Request, resource: Resource, *, bookmarks: bool) -> None:
        self._request, self._resource, self._bookmarks = request, resource, bookmarks
        self._answer = web.StreamResponse(headers={"Content-Type": "application/json"})

    async def follow(
        self, watch: ServedWatch, found: Iterable[Object], *, seconds: float
    ) -> web.StreamResponse:
        """Send `found` as ADDED, then the events of `watch`."""
        await self._answer.prepare(self._request)
        try:
            for each in found:
                await self._send("ADDED", each)
            await self._follow(watch, seconds)
        except ApiStatusError as error:
            await self._send("ERROR", error.status())
        except ConnectionError:
            pass  # the client is gone
        except TimeoutError:
            if self._request.transport is not None:
                self._request.transport.abort()  # the client does not read any more
        return self._answer

    async def _follow(self, watch: ServedWatch, seconds: float) -> None:
        clock = asyncio.get_running_loop().time
        quiet = BOOKMARK_SECONDS if self._bookmarks else math.inf
        ends, due = clock() + seconds, clock() + quiet
        while clock() < ends and self._request.transport is not None:
            events = watch.take()
            for event in events:
                await self._send(*event)
            if events:
                due = clock() + quiet
            elif clock() >= due:
                await self._send(*self._bookmark(watch))
                due = clock() + quiet
            await watch.wait(min(ends, due, clock() + BOOKMARK_SECONDS) - clock())
        if self._bookmarks:
            await self._send(*self._bookmark(watch))

    async def _send(self, kind: str, body: Object) -> None:
        """TimeoutError for a client that does not read, ConnectionError for one that is gone."""
        line = orjson.dumps({"type": kind, "object": body}) + b"\n"
        async with asyncio.timeout(SLOW_SECONDS):
            await self._answer.write(line)

    def _bookmark(self, watch: ServedWatch) -> Event:
        body = {
            "apiVersion": self._resource.api_version,
            "kind": self._resource.kind,
            "metadata": {"resourceVersion": str(watch.since)},
        }
        return Event("BOOKMARK", body)
