"""One request to the API server: bounded, counted, authenticated, retried only where harmless."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from typing import Any
from urllib.parse import urlencode

import aiohttp
import orjson

from rollcall_operator.kube.connection import Connection
from rollcall_operator.kube.errors import (
    ApiError,
    ThrottledError,
    UnauthorizedError,
    UnreachableError,
    connection_error_text,
    error_from,
)

log = logging.getLogger(__name__)

JSON = "application/json"
JSON_WEB_KEYS = "application/jwk-set+json"
APPLY_PATCH = "application/apply-patch+yaml"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"

SILENT_SECONDS = 90.0  # of a WATCH; the server sends a bookmark each minute
_LONGEST_REFUSAL = 1 << 16
_NO_ANSWER = (aiohttp.ClientError, TimeoutError, OSError)

RequestObserver = Callable[[str, str, int], None]
"""Called after each attempt with verb, plural and status (0: no answer)."""

WriteGuard = Callable[[], None]
"""Called before each write; raises when this process must not write any more."""


class Transport:
    """Sends one request at a time for each caller; many callers share its connection pool."""

    def __init__(
        self,
        connection: Connection,
        *,
        timeout: float = 15.0,
        throttle_attempts: int = 6,
        observe: RequestObserver | None = None,
        guard: WriteGuard | None = None,
    ) -> None:
        self._connection = connection
        self._timeout = timeout
        self._throttle_attempts = throttle_attempts
        self._observe = observe or (lambda _verb, _plural, _status: None)
        self.guard: WriteGuard = guard or (lambda: None)

    @property
    def connection(self) -> Connection:
        """The configuration in use, for those who open their own streams (pod proxy, kopf)."""
        return self._connection

    async def request(
        self,
        method: str,
        path: str,
        *,
        verb: str,
        plural: str,
        query: dict[str, str] | None = None,
        body: Any = None,
        content_type: str = JSON,
        accept: str = JSON,
    ) -> dict[str, Any]:
        """The answer's JSON object.

        Raises ApiError (by kind) and UnreachableError. Only 429 (no effect) and one 401 (new
        credentials) are retried here; all other errors are retried by the work queue.
        """
        types = {"Accept": accept, "Content-Type": content_type}
        whole = path + (f"?{urlencode(query)}" if query else "")
        data = await self._attempts(
            method, whole, verb=verb, plural=plural, body=body, types=types, most_bytes=None
        )
        return parsed(data, f"{verb} {whole}") if data else {}

    async def read(self, path: str, *, verb: str, plural: str, most_bytes: int) -> bytes:
        """A GET's answer, whatever it is; UnreachableError if it is longer. Else as `request`."""
        return await self._attempts(
            "GET", path, verb=verb, plural=plural, body=None, types={}, most_bytes=most_bytes
        )

    async def lines(
        self, path: str, *, plural: str, query: dict[str, str], opened: Callable[[], None]
    ) -> AsyncGenerator[bytes, None]:
        """The lines of a WATCH as they come; UnreachableError once SILENT_SECONDS bring none.

        `opened` is called once the server has agreed. Close the generator to end the request.
        Raises as `request` does; 429 is not retried.
        """
        url = f"{self._connection.server}{path}?{urlencode({**query, 'watch': 'true'})}"
        times = aiohttp.ClientTimeout(
            total=None, sock_connect=self._timeout, sock_read=SILENT_SECONDS
        )
        for is_last in (False, True):
            try:
                answer = await self._open(
                    "GET",
                    url,
                    verb="watch",
                    plural=plural,
                    body=None,
                    types={"Accept": JSON},
                    most_bytes=_LONGEST_REFUSAL,
                    times=times,
                )
                break
            except UnauthorizedError:
                if is_last:
                    raise
                await self._refresh()
        opened()
        try:
            async for line in answer.content:
                if line.strip():
                    yield line
        except (*_NO_ANSWER, ValueError) as error:  # ValueError: a line of megabytes
            raise self._unreachable("watch", url, error) from error
        finally:
            answer.close()

    async def _attempts(
        self,
        method: str,
        path: str,
        *,
        verb: str,
        plural: str,
        body: Any,
        types: dict[str, str],
        most_bytes: int | None,
    ) -> bytes:
        url = self._connection.server + path
        refreshed = False
        attempt = 0
        while True:
            attempt += 1
            if method != "GET":
                self.guard()
            try:
                return await self._once(
                    method,
                    url,
                    verb=verb,
                    plural=plural,
                    body=body,
                    types=types,
                    most_bytes=most_bytes,
                )
            except ThrottledError as error:
                if attempt >= self._throttle_attempts:
                    raise
                await asyncio.sleep(error.retry_after)
            except UnauthorizedError:
                if refreshed:
                    raise
                refreshed = True
                await self._refresh()

    async def _refresh(self) -> None:
        try:
            await self._connection.refresh()
        except Exception as error:  # whatever a credential plugin raises
            raise UnreachableError(f"credentials cannot be read again: {error}") from error

    async def _once(
        self,
        method: str,
        url: str,
        *,
        verb: str,
        plural: str,
        body: Any,
        types: dict[str, str],
        most_bytes: int | None,
    ) -> bytes:
        response = await self._open(
            method,
            url,
            verb=verb,
            plural=plural,
            body=body,
            types=types,
            most_bytes=most_bytes,
            times=aiohttp.ClientTimeout(total=self._timeout),
        )
        try:
            return await _body(response, most_bytes)
        except _NO_ANSWER as error:
            raise self._unreachable(verb, url, error) from error

    async def _open(
        self,
        method: str,
        url: str,
        *,
        verb: str,
        plural: str,
        body: Any,
        types: dict[str, str],
        most_bytes: int | None,
        times: aiohttp.ClientTimeout,
    ) -> aiohttp.ClientResponse:
        """A success, whose body is not read yet; ApiError and UnreachableError."""
        authorization = await self._connection.auth_headers()
        headers = {**types, "User-Agent": "rollcall-operator", **authorization}
        status, refusal = 0, b""
        try:
            response = await self._connection.session.request(
                method,
                url,
                headers=headers,
                data=None if body is None else orjson.dumps(body),
                timeout=times,
                **self._connection.request_options,
            )
            status = response.status
            if not 200 <= status < 300:
                refusal = await _body(response, most_bytes)
        except _NO_ANSWER as error:
            raise self._unreachable(verb, url, error) from error
        finally:
            self._observe(verb, plural, status)
        if not 200 <= status < 300:
            raise error_from(
                status=status,
                body=refusal,
                retry_after=response.headers.get("Retry-After"),
                what=self._what(verb, url),
            )
        return response

    def _unreachable(self, verb: str, url: str, error: Exception) -> UnreachableError:
        text = connection_error_text(error)
        return UnreachableError(f"{self._what(verb, url)}: {type(error).__name__}: {text}")

    def _what(self, verb: str, url: str) -> str:
        return f"{verb} {url.removeprefix(self._connection.server)}"


def parsed(data: bytes, what: str) -> dict[str, Any]:
    """A JSON object; UnreachableError for anything else, which no API server sends."""
    try:
        found = orjson.loads(data)
    except ValueError as error:
        raise UnreachableError(f"{what}: the answer is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise UnreachableError(f"{what}: the answer is not a JSON object")
    return found


async def _body(answer: aiohttp.ClientResponse, most: int | None) -> bytes:
    """The whole answer; OSError if it is longer than `most` bytes."""
    if most is None:
        return await answer.read()
    found = bytearray()
    async for piece in answer.content.iter_any():
        found += piece
        if len(found) > most:
            answer.close()
            raise OSError(f"the answer is longer than {most} bytes")
    return bytes(found)


__all__ = ["APPLY_PATCH", "JSON", "MERGE_PATCH", "STRATEGIC_PATCH", "ApiError", "Transport"]
