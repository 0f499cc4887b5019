"""One request to the API server: bounded, counted, authenticated, retried only where harmless."""

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

import aiohttp

from rollcall_operator.kube.connection import Connection
from rollcall_operator.kube.errors import (
    ApiError,
    ThrottledError,
    UnauthorizedError,
    UnreachableError,
    error_from,
)

log = logging.getLogger(__name__)

JSON = "application/json"
JSON_WEB_KEYS = "application/jwk-set+json"
APPLY_PATCH = "application/apply-patch+yaml"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"

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
        url = self._connection.server + path + (f"?{urlencode(query)}" if query else "")
        refreshed = False
        attempt = 0
        while True:
            attempt += 1
            if method != "GET":
                self.guard()
            try:
                types = {"Accept": accept, "Content-Type": content_type}
                return await self._once(
                    method, url, verb=verb, plural=plural, body=body, types=types
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
        self, method: str, url: str, *, verb: str, plural: str, body: Any, types: dict[str, str]
    ) -> dict[str, Any]:
        headers = {
            **types,
            "User-Agent": "rollcall-operator",
            **await self._connection.auth_headers(),
        }
        what = f"{verb} {url.removeprefix(self._connection.server)}"
        status = 0
        try:
            response = await self._connection.api.rest_client.request(
                method,
                url,
                headers=headers,
                body=body,
                _request_timeout=aiohttp.ClientTimeout(total=self._timeout),
            )
            status = response.status
            data: bytes = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise UnreachableError(f"{what}: {type(error).__name__}: {error}") from error
        finally:
            self._observe(verb, plural, status)
        if not 200 <= status < 300:
            raise error_from(
                status=status, body=data, retry_after=response.headers.get("Retry-After"), what=what
            )
        return self._parse(data, what)

    @staticmethod
    def _parse(data: bytes, what: str) -> dict[str, Any]:
        try:
            parsed = json.loads(data) if data else {}
        except ValueError as error:
            raise UnreachableError(f"{what}: the answer is not JSON: {error}") from error
        if not isinstance(parsed, dict):
            raise UnreachableError(f"{what}: the answer is not a JSON object")
        return parsed


__all__ = ["APPLY_PATCH", "JSON", "MERGE_PATCH", "STRATEGIC_PATCH", "ApiError", "Transport"]
