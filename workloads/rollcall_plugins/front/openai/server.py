"""The front's endpoints for agents, in the form of OpenAI's API."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from aiohttp import web

from rollcall_plugins.front.openai.admission import Admission, BusyError
from rollcall_plugins.front.openai.answering import Answer
from rollcall_plugins.front.openai.bad_request import TOO_LONG, BadRequestError
from rollcall_plugins.front.openai.openai_answers import error_body
from rollcall_plugins.front.openai.openai_requests import read_chat, read_completion
from rollcall_plugins.front.openai.recording import (
    TRAJECTORY_HEADER,
    CoordinatorAwayError,
    RefusedTrajectoryError,
)
from rollcall_plugins.front.openai.response_stream import response_events
from rollcall_plugins.front.openai.responses import read_response, response_body
from rollcall_protocol import pod_contract
from rollcall_protocol.prompts.sample_check import MAX_POSITIONS
from rollcall_runtime.generation.continued_generation import NoRolloutError
from rollcall_runtime.generation.rollout_client import TooLongError, UnanswerableError
from rollcall_runtime.membership.long_messages import parsed
from rollcall_runtime.worker.bounded_listener import BACKLOG, BoundedRunner
from rollcall_runtime.worker.log_rate import REPEATED

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from rollcall_plugins.front.openai.api_keys import ApiKeys
    from rollcall_plugins.front.openai.metrics import FrontMetrics
    from rollcall_plugins.front.openai.openai_requests import CompletionRequest
    from rollcall_plugins.front.openai.prompts import PromptReader
    from rollcall_plugins.front.openai.recording import Recording
    from rollcall_protocol.front_config import FrontConfig
    from rollcall_protocol.job_config import JobConfig
    from rollcall_runtime.generation.continued_generation import Generation
    from rollcall_runtime.worker.auth import RouteHandler
    from rollcall_runtime.worker.identity.tls import TlsContext

log = logging.getLogger(__name__)

STOP_SECONDS = 30.0  # for requests that run when the front is stopped
BODY_SECONDS = 10.0
LONGEST_REWARD = 4096  # bytes
_REQUEST_BYTES, _TOKEN_BYTES = 1 << 20, 64  # of a body: all else, and what a position is said by
REWARD = "/v1/trajectories/{trajectory}/reward"
MODELS, CHAT, COMPLETIONS = "/v1/models", "/v1/chat/completions", "/v1/completions"
RESPONSES, HEALTH = "/v1/responses", "/health"
_FAILURES: dict[type[Exception], tuple[str, int]] = {
    UnanswerableError: ("bad_request", 400),
    TooLongError: ("bad_request", 400),
    BusyError: ("busy", 429),
    NoRolloutError: ("no_rollout", 503),
    TimeoutError: ("late", 504),
    CoordinatorAwayError: ("no_coordinator", 503),
}
_RETRY = {"Retry-After": "1"}


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """How an endpoint writes what is a chat's or completion's answer: whole, and as events.

    `last` ends a stream.
    """

    whole: Callable[[dict[str, Any]], dict[str, Any]]
    events: Callable[[AsyncGenerator[dict[str, Any], None]], AsyncGenerator[dict[str, Any], None]]
    last: bytes


_CHATS_FORM = AnswerForm(dict, lambda pieces: pieces, b"data: [DONE]\n\n")
_RESPONSES_FORM = AnswerForm(response_body, response_events, b"")


class FrontServer:
    """Listens on the pod's address. Without `keys` it asks clients for no API key."""

    def __init__(
        self,
        *,
        job: JobConfig,
        settings: FrontConfig,
        reader: PromptReader,
        generation: Generation,
        keys: ApiKeys | None,
        metrics: FrontMetrics,
        recording: Recording,
        certificate: TlsContext | None = None,
    ) -> None:
        self._job, self._settings, self._reader = job, settings, reader
        self._generation, self._keys, self._metrics = generation, keys, metrics
        self._recording = recording
        self._admission = Admission(
            running=settings.most_running,
            waiting=settings.most_waiting,
            tokens=job.algorithm.sampling.max_tokens,
        )
        self._started = int(time.time())
        positions = reader.positions or MAX_POSITIONS
        self._longest = _REQUEST_BYTES + positions * _TOKEN_BYTES
        application = web.Application()
        application.router.add_get(HEALTH, self._health)
        application.router.add_get(MODELS, self._guard(self._models))
        application.router.add_get(f"{MODELS}/{{model:.+}}", self._guard(self._model))
        application.router.add_post(CHAT, self._guard(self._answers(read_chat)))
        responses = self._answers(read_response, _RESPONSES_FORM)
        application.router.add_post(RESPONSES, self._guard(responses))
        application.router.add_post(COMPLETIONS, self._guard(self._answers(read_completion)))
        application.router.add_post(REWARD, self._guard(self._reward))
        self._runner = BoundedRunner(
            application,
            refused=self._refused,
            shutdown_timeout=STOP_SECONDS,
            tls=certificate,
            handler_cancellation=True,
        )

    async def start(self, address: str, port: int = pod_contract.FRONT_PORT) -> None:
        """Listen on `address`; OSError if the port is taken."""
        await self._runner.setup()
        await web.TCPSite(self._runner, address, port, backlog=BACKLOG).start()

    async def stop(self) -> None:
        """Stop listening, and end requests within STOP_SECONDS."""
        await self._runner.cleanup()

    # --- inside --------------------------------------------------------------------------------

    def _refused(self, what: str) -> None:
        self._metrics.refused(what=what).inc()

    def _guard(self, handler: RouteHandler) -> RouteHandler:
        """Ask for an API key, and give errors the form that OpenAI's clients read."""

        async def guarded(request: web.Request) -> web.StreamResponse:
            if self._keys is not None and not self._keys.admits(_key(request)):
                return self._error("wrong_key", 401, "the API key is missing or wrong")
            try:
                return await handler(request)
            except BadRequestError as error:
                own = error.problem, error.field, error.code
                return self._error("bad_request", error.status, *own)
            except RefusedTrajectoryError as error:
                return self._error("trajectory", error.status, str(error))
            except tuple(_FAILURES) as error:
                what, status = _FAILURES[type(error)]
                code = TOO_LONG if isinstance(error, TooLongError) else None
                return self._error(what, status, self._problem(error), code=code)
            except web.HTTPRequestEntityTooLarge as error:
                problem = error.text or "the body is too long"
                return self._error("long_body", 413, problem, code=TOO_LONG)

        return guarded

    def _error(
        self,
        what: str,
        status: int,
        problem: str,
        field: str | None = None,
        code: str | None = None,
    ) -> web.Response:
        self._refused(what)
        log.info("refused a request (%d): %.300s", status, problem, extra=REPEATED)
        kinds = {401: "authentication_error", 429: "rate_limit_error"}
        kind = kinds.get(status, "server_error" if status >= 500 else "invalid_request_error")
        code = code or ("invalid_api_key" if status == 401 else None)
        body = error_body(problem, kind=kind, field=field, code=code)
        return web.json_response(body, status=status, headers=_RETRY if status == 429 else None)

    def _deadline(self) -> asyncio.Timeout:
        return asyncio.timeout(self._settings.request_seconds)

    def _problem(self, error: Exception) -> str:
        late = f"there was no whole answer within {self._settings.request_seconds:g} s"
        return str(error) or late

    async def _health(self, _: web.Request) -> web.StreamResponse:
        """As vLLM's, also without a key: 200 if a rollout serves, 503 if none does.

        A trainer of the user's own may wait for 200 before it publishes what they are to serve.
        """
        well = self._job.external or self._generation.routes.rollouts
        return web.Response(status=200 if well else 503)

    async def _models(self, _: web.Request) -> web.StreamResponse:
        return web.json_response({"object": "list", "data": [self._own_model()]})

    async def _model(self, request: web.Request) -> web.StreamResponse:
        self._check_model(request.match_info["model"])
        return web.json_response(self._own_model())

    def _check_model(self, name: str) -> None:
        if name != self._job.model:
            problem = f"the model is {self._job.model!r}, not {name[:200]!r}"
            raise BadRequestError(problem, "model", "model_not_found", status=404)

    def _own_model(self) -> dict[str, Any]:
        return {
            "id": self._job.model,
            "object": "model",
            "created": self._started,
            "owned_by": f"{self._job.namespace}/{self._job.job}",
            "max_model_len": self._reader.positions,
        }

    async def _reward(self, request: web.Request) -> web.StreamResponse:
        try:
            body = await _json(request, LONGEST_REWARD)
            verdict = await self._recording.reward(request.match_info["trajectory"], body)
        except (TimeoutError, CoordinatorAwayError):
            problem = "the trainer does not take trajectories now; send the reward again"
            return self._error("late", 503, problem)
        return web.json_response({"verdict": verdict.value})

    def _answers(
        self,
        read: Callable[[Any, Any], CompletionRequest],
        form: AnswerForm = _CHATS_FORM,
    ) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def answer(request: web.Request) -> web.StreamResponse:
            async with self._admission.slot():  # before a body needs memory
                began = time.monotonic()
                self._metrics.requests_running.inc()
                try:
                    body = await _json(request, self._longest)
                    asked = read(body, self._job.algorithm.sampling)
                    return await self._generate(request, asked, form)
                finally:
                    self._metrics.requests_running.dec()
                    self._metrics.request_seconds.observe(time.monotonic() - began)

        return answer

    async def _generate(
        self,
        request: web.Request,
        asked: CompletionRequest,
        form: AnswerForm,
    ) -> web.StreamResponse:
        trajectory = await self._recording.open(request.headers.get(TRAJECTORY_HEADER, ""))
        self._check_model(asked.model)
        given = await asyncio.to_thread(self._reader.prompts, asked)  # a template may take long
        if len(given) > 1 and self._job.data.from_front:
            problem = "several prompts are no single trajectory; send a request each"
            raise BadRequestError(problem, "prompt")
        prompts = [await self._tokens(each, asked, trajectory) for each in given]
        headers = {TRAJECTORY_HEADER: trajectory}
        with self._admission.work(
            "" if self._keys is None else _key(request),
            keys=1 if self._keys is None else self._keys.count,
            answers=len(prompts) * asked.n,
            tokens=asked.sampling.max_tokens if asked.names_length else 0,
        ) as place:
            answer = Answer(
                asked, prompts, generation=self._generation, reader=self._reader, place=place
            )
            text = given[0] if isinstance(given[0], str) else None
            record = partial(self._recording.record, trajectory, answer, text)
            if asked.stream:
                return await self._stream(request, answer, form, headers, record)
            async with self._deadline():
                body = form.whole(await answer.whole())
            await self._ended(answer, record)
            return web.json_response(body, headers=headers)

    async def _ended(self, answer: Answer, record: Callable[[], Awaitable[None]]) -> None:
        """Record a whole answer before the agent has it: another pod may get the next turn."""
        await record()
        self._metrics.tokens.inc(sum(len(one.response.tokens) for one in answer.choices))
        self._metrics.answered.inc()

    async def _tokens(
        self, prompt: str | tuple[int, ...], asked: CompletionRequest, trajectory: str
    ) -> tuple[int, ...]:
        """Of a prompt; those that its trajectory has already are taken as they were sampled."""
        if isinstance(prompt, str):
            known, behind = await self._recording.continued(trajectory, prompt, asked)
            begins = not known and not asked.chat
            encode = partial(self._reader.encode, behind, asked.prompt_field, begins=begins)
            prompt = (*known, *await asyncio.to_thread(encode))
        self._reader.check(asked, prompt)
        return prompt

    async def _stream(
        self,
        request: web.Request,
        answer: Answer,
        form: AnswerForm,
        headers: dict[str, str],
        record: Callable[[], Awaitable[None]],
    ) -> web.StreamResponse:
        """Server-sent events. What goes wrong after the first one is an event, too."""
        response = web.StreamResponse(
            headers={
                "Content-Type": "text/event-stream",
                "Cache-Control": "no-cache",
                **headers,
            }
        )
        began, ended = time.monotonic(), False
        async with aclosing(form.events(answer.pieces())) as events:
            try:
                async with self._deadline():
                    async for event in events:
                        if answer.finished and not ended:
                            ended = True
                            await self._ended(answer, record)
                        if not response.prepared:
                            self._metrics.first_token_seconds.observe(time.monotonic() - began)
                            await response.prepare(request)
                        await response.write(_event(event))
            except (
                NoRolloutError,
                UnanswerableError,
                TimeoutError,
                CoordinatorAwayError,
            ) as error:
                if not response.prepared:
                    raise
                self._refused("cut_off")
                failed = error_body(self._problem(error), kind="server_error")
                await response.write(_event(failed))
        if form.last:
            await response.write(form.last)
        return response


def _key(request: web.Request) -> str:
    return request.headers.get("Authorization", "").removeprefix("Bearer ")


def _event(body: dict[str, Any]) -> bytes:
    named = f"event: {body['type']}\n".encode() if "type" in body else b""
    return named + b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\n"


async def _json(request: web.Request, longest: int) -> Any:
    """The body. BadRequestError; HTTPRequestEntityTooLarge beyond `longest` bytes."""
    try:
        async with asyncio.timeout(BODY_SECONDS):
            body = await request.clone(client_max_size=longest).read()
            return await parsed(body, json.loads)
    except TimeoutError:
        raise BadRequestError("the request comes too slowly") from None
    except (ValueError, RecursionError) as error:
        raise BadRequestError(f"the body is no JSON: {error}") from error
