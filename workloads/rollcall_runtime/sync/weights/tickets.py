"""Tickets: a newcomer shows a donor no token, but the coordinator's word for one version. A front
shows rollouts the coordinator's word for their generation endpoint.

A token shown to a rollout could be used in its bearer's name. A ticket opens the weights of one
version at one donor, which the newcomer has anyway once it has used it. It has no time: it ends
with the donor's stream, whose key it is signed by, and with the version, so that clocks which
differ refuse no newcomer.
"""

import hmac
import logging
from collections.abc import Callable

from aiohttp import web

from rollcall_protocol.pod_contract import TICKET_HEADER
from rollcall_runtime.worker.auth import RouteHandler

log = logging.getLogger(__name__)

LONGEST_VERSION = 100


def sign_ticket(key: str, opens: str) -> str:
    """The ticket for a version, or for an endpoint, at the member with this key (hex)."""
    return hmac.digest(bytes.fromhex(key), opens.encode(), "sha256").hex()


class TicketKeys:
    """A donor's keys, one for each of its streams to the coordinator; those of `source`s."""

    def __init__(self) -> None:
        self._keys: dict[str, str] = {}

    def accept(self, source: str, key: str) -> None:
        """The coordinator gave this key (hex) on the stream `source`; the former one ends."""
        self._keys[source] = key

    def admits(self, ticket: str, opens: str) -> bool:
        """Whether the coordinator signed `ticket` for this member and that version or endpoint."""
        if len(opens) > LONGEST_VERSION or not ticket.isascii() or not opens.isascii():
            return False
        return any(
            hmac.compare_digest(ticket, sign_ticket(key, opens)) for key in self._keys.values()
        )

    def guard(self, handler: RouteHandler, refused: Callable[[str], None]) -> RouteHandler:
        """Wrap the handler of weights: 401 without a ticket for the version that is asked for."""

        async def guarded(request: web.Request) -> web.StreamResponse:
            ticket = request.headers.get(TICKET_HEADER, "")
            if not self.admits(ticket, request.query.get("version", "")):
                refused("no_ticket")
                return web.Response(status=401, text="no ticket for this version and donor")
            return await handler(request)

        return guarded
