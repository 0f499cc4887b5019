"""What the API server passes on to pods: their logs, and GETs of their HTTP servers."""

import asyncio
from collections.abc import Callable
from typing import Any

import aiohttp
from aiohttp import web

from rollcall_local.api_server.errors import MalformedRequestError, UnavailableError
from rollcall_local.api_server.requests import number_of
from rollcall_local.api_server.store import ObjectStore
from rollcall_operator.kube.http_client import open_session
from rollcall_operator.kube.resources import PODS

Object = dict[str, Any]
ReadLog = Callable[[Object, str, int | None, int | None], bytes]
"""Takes a pod, a container, lines from the end (None: all), and seconds (None: all)."""

_SECONDS = 10.0
_MOST_BYTES = 64 << 20


class PodRoutes:
    """Owns the HTTP session to pods; close it."""

    def __init__(self, store: ObjectStore, *, read_log: ReadLog) -> None:
        """Needs a running event loop."""
        self._store, self._read_log = store, read_log
        self._session = open_session(
            hands_on_redirects=True, timeout=aiohttp.ClientTimeout(total=_SECONDS)
        )

    def add_to(self, router: web.UrlDispatcher) -> None:
        """Serve them."""
        pod = "/api/v1/namespaces/{namespace}/pods/{name}"
        router.add_get(pod + "/log", self._log)
        router.add_get(pod + "/proxy{route:/.*}", self._proxy)

    async def close(self) -> None:
        """End all connections."""
        await self._session.close()

    async def _log(self, request: web.Request) -> web.StreamResponse:
        info, query = request.match_info, request.query
        pod = self._store.get(PODS, info["namespace"], info["name"])
        lines, seconds = (
            number_of(request, name, 0) if name in query else None
            for name in ("tailLines", "sinceSeconds")
        )
        groups = (pod["spec"].get(group) or () for group in ("containers", "initContainers"))
        containers = [each["name"] for group in groups for each in group]
        container = query.get("container") or containers[0]
        if container not in containers:
            raise MalformedRequestError(
                f"container: {container!r} is none of {', '.join(containers)}"
            )
        text = await asyncio.to_thread(self._read_log, pod, container, lines, seconds)
        return web.Response(body=text, content_type="text/plain")

    async def _proxy(self, request: web.Request) -> web.StreamResponse:
        """Redirects are not followed."""
        info = request.match_info
        name, _, port = info["name"].removeprefix("http:").rpartition(":")
        if not name or ":" in name or not port.isdecimal():
            raise MalformedRequestError(f"proxy: {info['name']!r} is not POD:PORT")
        pod = self._store.get(PODS, info["namespace"], name)
        address = (pod.get("status") or {}).get("podIP")
        if not address:
            raise UnavailableError(f"pod {name} has no address yet")
        url = f"http://{address}:{port}{info['route']}"
        try:
            async with self._session.get(
                url, params=request.query, allow_redirects=False
            ) as answer:
                return await _copied(answer, name)
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise UnavailableError(f"pod {name} does not answer at port {port}: {error}") from error


async def _copied(answer: aiohttp.ClientResponse, pod: str) -> web.Response:
    content = bytearray()
    async for piece in answer.content.iter_any():
        content += piece
        if len(content) > _MOST_BYTES:
            raise UnavailableError(f"pod {pod} answers with more than {_MOST_BYTES} bytes")
    return web.Response(body=bytes(content), status=answer.status, content_type=answer.content_type)
