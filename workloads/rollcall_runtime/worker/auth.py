"""Who may speak: bearer tokens from the job's Secret, compared in constant time."""

import hmac
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from aiohttp import web

from rollcall_protocol import env

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Tokens:
    """The member's token opens streams and takes completions; the operator's pushes rosters."""

    member: str
    operator: str


def guard(token: str, handler: Handler, refused: Callable[[str], None]) -> Handler:
    """Wrap `handler` so that it answers 401, and counts it, unless the request has `token`."""

    async def guarded(request: web.Request) -> web.StreamResponse:
        bearer = request.headers.get("Authorization", "").removeprefix("Bearer ")
        given = request.headers.get(env.OPERATOR_TOKEN_HEADER) or bearer
        if not hmac.compare_digest(given.encode(), token.encode()):
            refused("unauthenticated")
            return web.json_response({"error": "wrong or missing token"}, status=401)
        return await handler(request)

    return guarded
