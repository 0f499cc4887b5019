"""Authenticates HTTP requests by the tokens of the job's Secret, compared in constant time."""

import hmac
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from aiohttp import web

from rollcall_protocol import pod_contract

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Tokens:
    """`member` authorises streams and completions, `operator` roster pushes and job snapshots."""

    member: str
    operator: str


def guard(token: str, handler: Handler, refused: Callable[[str], None]) -> Handler:
    """Wrap `handler`: without `token` a request is answered with 401 and counted as refused."""

    async def guarded(request: web.Request) -> web.StreamResponse:
        return refuse_without(token, request, refused) or await handler(request)

    return guarded


def refuse_without(
    token: str, request: web.Request, refused: Callable[[str], None]
) -> web.Response | None:
    """The answer to a request without `token`, which is counted as refused; None with it."""
    bearer = request.headers.get("Authorization", "").removeprefix("Bearer ")
    given = request.headers.get(pod_contract.OPERATOR_TOKEN_HEADER) or bearer
    # Headers that are no UTF-8 come with surrogates.
    if hmac.compare_digest(given.encode(errors="surrogateescape"), token.encode()):
        return None
    refused("unauthenticated")
    return web.json_response({"error": "wrong or missing token"}, status=401)
