"""Calls of a vLLM server on a Unix socket: token requests, and what vLLM has for RL frameworks.

The routes are vLLM's own: /inference/v1/generate takes and gives token ids; with
VLLM_SERVER_DEV_MODE there are /pause, /resume and the updates of weights.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import aiohttp

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping
    from pathlib import Path

LINE_BYTES = 4 << 20  # of one piece of a stream: a few tokens
REPLY_BYTES = 4 << 20
METRICS_BYTES = 16 << 20
_REQUESTS_FAULT = frozenset({400, 413, 422})
_PROBLEM = 2000  # characters of an error that are passed on


class VllmError(RuntimeError):
    """vLLM refused a call, or failed at it."""


class VllmClient:
    """Of one event loop. Each call has a deadline; those without one end with their stream."""

    def __init__(self, socket: Path) -> None:
        self._http = aiohttp.ClientSession(
            "http://vllm",
            # A connection for each call: the server ends idle ones, maybe as a call is sent on one.
            connector=aiohttp.UnixConnector(path=str(socket), limit=0, force_close=True),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=10.0),
            read_bufsize=LINE_BYTES,
        )

    async def close(self) -> None:
        """End all calls."""
        await self._http.close()

    async def get(self, route: str, *, seconds: float) -> bytes:
        """The body. VllmError for a refusal; OSError, TimeoutError if there is no answer."""
        limit = aiohttp.ClientTimeout(total=seconds)
        try:
            async with self._http.get(route, timeout=limit) as reply:
                body = await reply.content.read(METRICS_BYTES)
                if reply.status != 200:
                    raise VllmError(f"{route}: {_problem(body)}")
                return body
        except aiohttp.ClientError as error:
            raise VllmError(f"{route}: {type(error).__name__}: {error}") from error

    async def post(
        self,
        route: str,
        body: Mapping[str, Any] | None = None,
        *,
        seconds: float,
        parameters: Mapping[str, str] | None = None,
    ) -> None:
        """VllmError for a refusal or a broken connection; TimeoutError if there is no answer."""
        limit = aiohttp.ClientTimeout(total=seconds)
        try:
            async with self._http.post(
                route, json=dict(body or {}), params=parameters, timeout=limit
            ) as reply:
                answer = await reply.content.read(REPLY_BYTES)
                if reply.status != 200:
                    raise VllmError(f"{route}: {_problem(answer)}")
        except aiohttp.ClientError as error:
            raise VllmError(f"{route}: {type(error).__name__}: {error}") from error

    async def stream(self, body: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """The choices of a token request, as they come; closing this aborts the request.

        ValueError if vLLM refuses the request as such; VllmError if it fails.
        """
        try:
            async with self._http.post("/inference/v1/generate", json=dict(body)) as reply:
                if reply.status != 200:
                    raise _refusal(reply.status, await reply.content.read(REPLY_BYTES))
                async for line in reply.content:
                    if line.startswith(b"data: ") and not line.startswith(b"data: [DONE]"):
                        yield _choice(line[6:])
        except aiohttp.ClientError as error:
            raise VllmError(f"the stream broke: {type(error).__name__}: {error}") from error


def _choice(data: bytes) -> dict[str, Any]:
    piece = json.loads(data)
    if "error" in piece:
        code = piece["error"].get("code") if isinstance(piece["error"], dict) else None
        raise _refusal(int(code or 500), data)
    (choice,) = piece["choices"]
    return dict(choice)


def _refusal(status: int, body: bytes) -> Exception:
    """ValueError where the request is at fault."""
    problem = _problem(body)
    return ValueError(problem) if status in _REQUESTS_FAULT else VllmError(problem)


def _problem(body: bytes) -> str:
    """What vLLM says of an error, whichever way it says it."""
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
