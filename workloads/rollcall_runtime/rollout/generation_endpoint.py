"""The rollout's endpoint for the front: tokens in, and one response's tokens out as they come."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from dataclasses import replace

from aiohttp import web

from rollcall_protocol.pod_contract import GENERATE_ROUTE, TICKET_HEADER
from rollcall_protocol.prompts.sample_check import MAX_POSITIONS, SampleBounds
from rollcall_protocol.wire.generation import GenerationLine, GenerationRequest, NewTokens
from rollcall_protocol.wire.ids import Version
from rollcall_protocol.wire.json_codec import CodecError, decode, parse, to_json
from rollcall_runtime.membership.long_messages import parsed
from rollcall_runtime.rollout.inference_engine import InferenceEngine
from rollcall_runtime.rollout.served_versions import ServedVersions
from rollcall_runtime.sync.weights.tickets import TicketKeys
from rollcall_runtime.worker.telemetry import RolloutMetrics

AT_ONCE = 512  # requests, beside the leases; the front sends no more than it may itself have
BODY_SECONDS = 10.0
HEARTBEAT_SECONDS = 1.0  # an empty line, so that the front finds a lost node soon
AGAIN_SECONDS = 0.1  # before a request is made again that the engine ended without a token
_TOKEN_BYTES, _REQUEST_BYTES = 64, 2**17  # as JSON: a token of `begun`, and all else


class GenerationEndpoint:
    """Answers for whom the coordinator gave a ticket of this endpoint. Belongs to one event loop.

    While `draining` it takes no request, and those that run go on until `end`. `at_once` requests
    run, which may change: those beyond it go on, and no new ones come.
    """

    def __init__(
        self,
        *,
        engine: InferenceEngine,
        served: ServedVersions,
        bounds: SampleBounds,
        tickets: TicketKeys,
        metrics: RolloutMetrics,
        draining: Callable[[], bool],
        at_once: Callable[[], int] = lambda: AT_ONCE,
    ) -> None:
        self._engine, self._served, self._bounds = engine, served, bounds
        self._tickets, self._metrics = tickets, metrics
        self._draining, self._at_once = draining, at_once
        self._longest = _REQUEST_BYTES + (bounds.positions or MAX_POSITIONS) * _TOKEN_BYTES
        self._running: set[asyncio.Task[object]] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    async def idle(self) -> None:
        """Wait until no request runs."""
        await self._idle.wait()

    def end(self) -> None:
        """Cut off the requests that run; the front continues them on other rollouts."""
        for task in self._running:
            task.cancel()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """POST of a GenerationRequest: 200 with a GenerationLine a line, an empty one as heartbeat.

        401 without a ticket, 503 while it drains, 429 beyond `at_once`, 408 for a body that comes
        slowly, 413 for one that is too long for it or for the engine, 400 for a request that the
        model cannot take.
        """
        if not self._tickets.admits(request.headers.get(TICKET_HEADER, ""), GENERATE_ROUTE):
            return self._refuse("no_ticket", 401, "no ticket for this endpoint")
        if self._draining():
            return self._refuse("draining", 503, "this rollout drains")
        task = asyncio.current_task()
        if task is None or len(self._running) >= self._at_once():
            problem = f"{len(self._running)} requests run here, as many as may now"
            return self._refuse("too_many_generations", 429, problem)
        self._running.add(task)
        self._changed()
        try:
            return await self._answer(request)
        finally:
            self._running.discard(task)
            self._changed()

    # --- inside --------------------------------------------------------------------------------

    def _changed(self) -> None:
        self._metrics.front_requests.set(len(self._running))
        if self._running:
            self._idle.clear()
        else:
            self._idle.set()

    def _refuse(self, what: str, status: int, problem: str) -> web.Response:
        self._metrics.refused(what=what).inc()
        return web.json_response({"error": problem}, status=status)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        try:
            async with asyncio.timeout(BODY_SECONDS):
                body = await request.clone(client_max_size=self._longest).read()
            asked = await parsed(body, _read)
        except TimeoutError:
            return self._refuse("slow_body", 408, "the request comes too slowly")
        except web.HTTPRequestEntityTooLarge:
            self._metrics.refused(what="long_body").inc()
            raise
        except CodecError as error:
            return self._refuse("malformed", 400, str(error))
        if not 0 <= asked.seed < 2**63:
            return self._refuse("malformed", 400, f"seed {asked.seed} is not from 0 to 2**63 - 1")
        bad = self._bounds.check_request(asked.prompt, asked.begun)
        if bad is not None:
            return self._refuse(f"bad_request_{bad.fault.value}", 400, bad.problem)
        if (problem := self._unable(asked)) is not None:
            return self._refuse("unable", 400, problem)
        limits = self._engine.limits
        room = None if limits is None else limits.context
        wanted = len(asked.prompt) + max(1, asked.sampling.max_tokens)
        if room is not None and wanted > room:
            problem = f"the rollouts' maximum context length is {room} tokens; prompt and answer"
            return self._refuse("bad_request_length", 413, f"{problem} together are {wanted}")
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await response.prepare(request)
        with suppress(ConnectionError):  # the front left: the engine's stream is closed
            async with aclosing(_with_heartbeats(self._lines(asked))) as lines:
                async for line in lines:
                    await response.write(b"\n" if line is None else f"{to_json(line)}\n".encode())
        return response

    def _unable(self, asked: GenerationRequest) -> str | None:
        """What this engine cannot do of what is asked, by the names that clients give it."""
        engine = self._engine
        if asked.json_schema and not engine.constrains:
            wanted = "response_format other than text"
        elif asked.top_logprobs and not engine.gives_top:
            wanted = "top_logprobs (of a completion: logprobs above 0)"
        else:
            return None
        advice = "leave it out, or have the rollouts use vllm (spec.rollouts[].engine.name)"
        return f"the rollouts' {type(engine).__name__} does not support {wanted}: {advice}"

    async def _lines(self, asked: GenerationRequest) -> AsyncGenerator[GenerationLine, None]:
        oldest = _OldestToken(self._served)
        begun = asked.begun
        try:
            while not begun.finished:
                before = begun
                pieces = self._engine.generate(replace(asked, begun=begun))
                async with aclosing(pieces):
                    async for piece in pieces:
                        begun = piece.after(begun)
                        self._metrics.tokens.inc(len(piece.tokens))
                        yield GenerationLine(piece, oldest.after(piece))
                if begun == before:  # an update of the weights aborted it
                    await asyncio.sleep(AGAIN_SECONDS)
        except ValueError as error:
            yield GenerationLine(error=str(error), final=True)
        except RuntimeError as error:
            yield GenerationLine(error=str(error))


class _OldestToken:
    """The oldest version among the tokens of one request that this rollout sampled."""

    def __init__(self, served: ServedVersions) -> None:
        self._served, self._since = served, served.now()
        self._numbers: set[int] = set()
        self._oldest: Version | None = None

    def after(self, piece: NewTokens) -> Version | None:
        """The oldest with this piece."""
        new = set(piece.versions) | set(piece.all_versions)
        if not new <= self._numbers:
            self._numbers |= new
            self._oldest = self._served.oldest(self._numbers, since=self._since)
        return self._oldest


def _read(body: bytes) -> GenerationRequest:
    return decode(GenerationRequest, parse(body), path="request")


async def _with_heartbeats(
    lines: AsyncGenerator[GenerationLine, None],
) -> AsyncGenerator[GenerationLine | None, None]:
    """The lines, and None after each HEARTBEAT_SECONDS without one."""
    coming: asyncio.Task[GenerationLine | None] | None = None
    try:
        while True:
            coming = coming or asyncio.ensure_future(anext(lines, None))
            done, _ = await asyncio.wait({coming}, timeout=HEARTBEAT_SECONDS)
            if not done:
                yield None
                continue
            line, coming = coming.result(), None
            if line is None:
                return
            yield line
    finally:
        if coming is not None:
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)
        await lines.aclose()
