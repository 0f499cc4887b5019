"""Calls of an inference server: on a Unix socket, or on a port of this machine with a key."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import aiohttp
from aiohttp.http_exceptions import LineTooLong

from rollcall_runtime.worker.http_client import plain_session

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping
    from pathlib import Path

LINE_BYTES = 4 << 20  # of one piece of a stream: a few tokens
REPLY_BYTES = 4 << 20
METRICS_BYTES = 16 << 20
_REQUESTS_FAULT = frozenset({400, 413, 422})
_PROBLEM = 2000  # characters of an error that are passed on


class InferenceServerError(RuntimeError):
    """The server refused a call, or failed at it."""


class ServerClient:
    """Of one event loop. Each call has a deadline; those without one end with their stream.

    The server answers on the Unix socket `socket`, or else on `port` of this machine to those who
    have `key`.
    """

    def __init__(self, *, socket: Path | None = None, port: int = 0, key: str = "") -> None:
        # A connection for each call: the server ends idle ones, maybe as a call is sent on one.
        connector = (
            aiohttp.UnixConnector(path=str(socket), limit=0, force_close=True)
            if socket is not None
            else aiohttp.TCPConnector(limit=0, force_close=True)
        )
        self._http = plain_session(
            base_url=f"http://127.0.0.1:{port}" if socket is None else "http://server",
            connector=connector,
            headers={"Authorization": f"Bearer {key}"} if key else None,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=10.0),
            read_bufsize=LINE_BYTES,
        )

    async def close(self) -> None:
        """Close the connections, which ends all calls that run."""
        await self._http.close()

    async def get(self, route: str, *, seconds: float) -> bytes:
        """The body. InferenceServerError for a refusal; OSError, TimeoutError for no answer."""
        limit = aiohttp.ClientTimeout(total=seconds)
        try:
            async with self._http.get(route, timeout=limit) as reply:
                return await _body(reply, route, most=METRICS_BYTES)
        except aiohttp.ClientError as error:
            raise InferenceServerError(f"{route}: {type(error).__name__}: {error}") from error

    async def metrics(self, prefix: str, *, seconds: float) -> bytes:
        """Those of /metrics called `prefix:...`; the server's Python has others. As `get`."""
        own = re.compile(rf"(# (HELP|TYPE) )?{prefix}:".encode())
        exposed = await self.get("/metrics", seconds=seconds)
        return b"".join(line for line in exposed.splitlines(keepends=True) if own.match(line))

    async def post(
        self,
        route: str,
        body: Mapping[str, Any] | None = None,
        *,
        seconds: float,
        parameters: Mapping[str, str] | None = None,
    ) -> bytes:
        """The body. InferenceServerError for a refusal or a broken connection; TimeoutError."""
        limit = aiohttp.ClientTimeout(total=seconds)
        try:
            async with self._http.post(
                route, json=dict(body or {}), params=parameters, timeout=limit
            ) as reply:
                return await _body(reply, route, most=REPLY_BYTES)
        except aiohttp.ClientError as error:
            raise InferenceServerError(f"{route}: {type(error).__name__}: {error}") from error

    async def stream(
        self, route: str, body: Mapping[str, Any]
    ) -> AsyncGenerator[dict[str, Any], None]:
        """The JSON objects of a stream of events, as they come; closing this ends the call.

        ValueError if the server refuses the request as such; InferenceServerError if it fails.
        """
        try:
            async with self._http.post(route, json=dict(body)) as reply:
                if reply.status != 200:
                    raise _refusal(reply.status, await reply.content.read(REPLY_BYTES))
                while line := await _line(reply.content):
                    if line.startswith(b"data: ") and not line.startswith(b"data: [DONE]"):
                        yield _event(line[6:])
        except aiohttp.ClientError as error:
            raise InferenceServerError(
                f"the stream broke: {type(error).__name__}: {error}"
            ) from error


async def _line(content: aiohttp.StreamReader) -> bytes:
    """The next one; empty at the end."""
    try:
        return await content.readline()
    except LineTooLong as error:
        raise InferenceServerError("the stream has a line that is too long") from error


async def _body(reply: aiohttp.ClientResponse, route: str, *, most: int) -> bytes:
    body = b""
    while len(body) <= most and (part := await reply.content.read(most)):
        body += part
    if len(body) > most:
        raise InferenceServerError(f"{route}: the answer has more than {most} bytes")
    if reply.status != 200:
        raise InferenceServerError(f"{route}: {_problem(body)}")
    return body


def _event(data: bytes) -> dict[str, Any]:
    try:
        event = json.loads(data)
    except ValueError as error:
        raise InferenceServerError(f"the stream has a line that is no JSON: {error}") from error
    if not isinstance(event, dict):
        raise InferenceServerError("the stream has a line that is no object")
    if "error" in event:
        code = event["error"].get("code") if isinstance(event["error"], dict) else None
        raise _refusal(code if isinstance(code, int) else 500, data)
    return event


def _refusal(status: int, body: bytes) -> Exception:
    """ValueError where the request is at fault."""
    problem = _problem(body)
    return ValueError(problem) if status in _REQUESTS_FAULT else InferenceServerError(problem)


def _problem(body: bytes) -> str:
    """What the server says of an error, whichever way it says it."""
    text = body.decode(errors="replace")
    try:
        found = json.loads(text)
    except ValueError:
        return text[:_PROBLEM]
    if isinstance(found, dict):
        found = found.get("error", found.get("detail", found))
    if isinstance(found, dict):
        found = found.get("message", found)
    return str(found)[:_PROBLEM]
