"""The operator's pushes of rosters to the coordinator."""

import logging
from collections.abc import Callable

from aiohttp import web

from rollcall_protocol.membership.coordinator_effects import RosterRefusedError
from rollcall_protocol.wire.json_codec import CodecError, decode, parse
from rollcall_protocol.wire.roster import Roster

log = logging.getLogger(__name__)


async def handle_roster_push(
    request: web.Request, push: Callable[[Roster], None], refused: Callable[[str], None]
) -> web.Response:
    """PUT of a roster: 200 accepted, 400 malformed, 409 refused (RosterRefusedError)."""
    try:
        roster = decode(Roster, parse(await request.read()), path="roster")
    except CodecError as error:
        refused("malformed")
        return web.json_response({"error": str(error)}, status=400)
    try:
        push(roster)
    except RosterRefusedError as error:
        refused("stale_roster")
        log.warning("roster of epoch %d refused: %s", roster.epoch, error)
        return web.json_response({"error": str(error), "epoch": error.epoch}, status=409)
    return web.json_response({})
