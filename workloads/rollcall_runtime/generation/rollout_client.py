"""One request to one rollout's endpoint."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress

import aiohttp

from rollcall_protocol.pod_contract import GENERATE_ROUTE, TICKET_HEADER
from rollcall_protocol.wire.bounded_lines import BoundedLines, LineBounds, TooMuchError
from rollcall_protocol.wire.generation import GenerationLine, GenerationRequest
from rollcall_protocol.wire.json_codec import CodecError, decode, parse, to_json
from rollcall_protocol.wire.plain_answers import UnusableAnswerError
from rollcall_protocol.wire.serving_rollouts import ServingRollout
from rollcall_runtime.membership.long_messages import parsed
from rollcall_runtime.worker.http_client import plain_session

CONNECT_SECONDS = 2.0
SILENT_SECONDS = 10.0  # without a line; a rollout sends one each second
LONGEST_REFUSAL = 1 << 16
# Of a token's line some 200 bytes are honest; an engine may give all tokens in one line.
BOUNDS = LineBounds(longest=1 << 22, nbytes=16 << 20, bytes_each_second=4 << 20)
END_SECONDS = 1.0  # from the last line to the end of the answer


class RolloutLostError(Exception):
    """A rollout does not go on with the request; another one may."""


class RolloutAbuseError(RolloutLostError):
    """A rollout answered as none does that this project's program runs, whatever the request is."""


class RolloutBusyError(RolloutLostError):
    """A rollout drains, or is full; it may take this one later."""


class RolloutFullError(RolloutBusyError):
    """A rollout has as many requests as it may."""


class UnanswerableError(ValueError):
    """No rollout can answer this request, such as one that is too long for the model."""


class TooLongError(UnanswerableError):
    """The rollouts' engines have no room for prompt and response."""


def open_session() -> aiohttp.ClientSession:
    """A session for all rollouts. Who sends requests bounds how many run at once."""
    return plain_session(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=30.0),
        timeout=aiohttp.ClientTimeout(
            total=None, sock_connect=CONNECT_SECONDS, sock_read=SILENT_SECONDS
        ),
    )


async def generated_lines(
    session: aiohttp.ClientSession, rollout: ServingRollout, asked: GenerationRequest
) -> AsyncGenerator[GenerationLine, None]:
    """What `rollout` samples, to the line that is `finished`; RolloutLostError, UnanswerableError.

    Closing the generator ends the request at the rollout.
    """
    headers = {TICKET_HEADER: rollout.ticket, "Content-Type": "application/json"}
    url = f"http://{rollout.address}{GENERATE_ROUTE}"
    try:
        async with session.post(url, data=to_json(asked), headers=headers) as answer:
            if answer.status != 200:
                await _refused(answer, rollout)
            async with aclosing(_lines(answer.content)) as lines:
                async for line in lines:
                    if line.error and line.final:
                        raise UnanswerableError(line.error)
                    if line.error or line.new is None:
                        raise RolloutLostError(f"{rollout.pod}: {line.error or 'an empty line'}")
                    yield line
                    if line.new.finished:
                        await _read_to_the_end(answer)
                        return
    except (aiohttp.ClientError, TimeoutError, OSError, CodecError, ValueError) as error:
        if isinstance(error, UnanswerableError):
            raise
        if isinstance(error, TooMuchError) or isinstance(error.__cause__, UnusableAnswerError):
            raise RolloutAbuseError(f"{rollout.pod}: {error}") from error
        raise RolloutLostError(f"{rollout.pod}: {type(error).__name__}: {error}") from error
    raise RolloutLostError(f"{rollout.pod}: the answer ended before the response")


async def _lines(content: aiohttp.StreamReader) -> AsyncGenerator[GenerationLine, None]:
    """Lines as they come; those without a token count as empty ones. CodecError, TooMuchError."""
    lines = BoundedLines(BOUNDS, time.monotonic())
    async for piece in content.iter_any():
        for text in lines.take(piece, time.monotonic()):
            line = await parsed(text, _read)
            if line.new is not None and not line.new.tokens:
                lines.idle(time.monotonic())
            yield line
        await asyncio.sleep(0)  # what is in the buffer already comes without a wait


def _read(text: bytes) -> GenerationLine:
    return decode(GenerationLine, parse(text), path="line")


async def _read_to_the_end(answer: aiohttp.ClientResponse) -> None:
    """Otherwise the connection is closed, and the next request needs another one."""
    with suppress(aiohttp.ClientError, TimeoutError, OSError):
        async with asyncio.timeout(END_SECONDS):
            await answer.content.read(LONGEST_REFUSAL)  # of an honest rollout nothing


async def _refused(answer: aiohttp.ClientResponse, rollout: ServingRollout) -> None:
    try:
        problem = str(json.loads(await answer.content.read(LONGEST_REFUSAL)).get("error", ""))
    except (ValueError, AttributeError):
        problem = ""
    if answer.status in {400, 413}:
        refusal = TooLongError if answer.status == 413 else UnanswerableError
        raise refusal(problem or f"the rollouts refuse it ({answer.status})")
    kind = {429: RolloutFullError, 503: RolloutBusyError}.get(answer.status, RolloutLostError)
    raise kind(f"{rollout.pod}: {answer.status} {problem}")
