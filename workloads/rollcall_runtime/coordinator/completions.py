"""Completions arrive as callbacks on a listener of their own, apart from weight updates."""

from collections.abc import Callable
from enum import StrEnum

from aiohttp import web

from rollcall_protocol.wire.json_codec import CodecError
from rollcall_protocol.wire.messages import Completion, loads


class CompletionVerdict(StrEnum):
    """What became of a completion."""

    COUNTED = "counted"
    DUPLICATE = "duplicate"  # the lease is not the current one any more
    FOREIGN = "foreign"  # of another job


async def handle_completion(
    request: web.Request,
    complete: Callable[[Completion], CompletionVerdict],
    refused: Callable[[str], None],
) -> web.Response:
    """POST of a completion: 200 counted, 409 dropped for good, 400 malformed. Safe to repeat."""
    try:
        completion = loads(await request.read(), Completion)
    except CodecError as error:
        refused("malformed")
        return web.json_response({"error": str(error)}, status=400)
    verdict = complete(completion)
    if verdict is CompletionVerdict.COUNTED:
        return web.json_response({})
    refused(f"{verdict.value}_completion")
    return web.json_response({"error": f"{verdict.value} completion"}, status=409)
