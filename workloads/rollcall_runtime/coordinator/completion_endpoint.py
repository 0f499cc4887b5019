"""The HTTP endpoint that takes completions, on a listener of its own beside that of weights."""

from collections.abc import Callable
from enum import StrEnum

from aiohttp import web

from rollcall_protocol.wire.json_codec import CodecError
from rollcall_protocol.wire.messages import Completion
from rollcall_runtime.membership.long_messages import load_message
from rollcall_runtime.worker.auth import current_caller, impersonation


class CompletionVerdict(StrEnum):
    """What the coordinator decided about a completion."""

    COUNTED = "counted"
    DUPLICATE = "duplicate"  # its lease is not the current one of the prompt
    WRONG_JOB = "wrong_job"
    BAD_SAMPLES = "bad_samples"  # they cannot be trained on


async def handle_completion(
    request: web.Request,
    complete: Callable[[Completion], CompletionVerdict],
    refused: Callable[[str], None],
) -> web.Response:
    """POST of a completion: 200 counted, 409 dropped for good, 400 malformed. Idempotent.

    403 for one in another's name.
    """
    try:
        completion = await load_message(await request.read(), (Completion,))
    except CodecError as error:
        refused("malformed")
        return web.json_response({"error": str(error)}, status=400)
    own = current_caller().identity
    if completion.member.pod_uid != own.pod_uid:
        problem = f"pod {own.pod} sends a completion of pod {completion.member.pod_uid}"
        return impersonation(refused, problem)
    verdict = complete(completion)
    if verdict is CompletionVerdict.COUNTED:
        return web.json_response({})
    if verdict is not CompletionVerdict.BAD_SAMPLES:  # these are counted by kind
        refused(f"{verdict.value}_completion")
    return web.json_response({"error": f"{verdict.value} completion"}, status=409)
