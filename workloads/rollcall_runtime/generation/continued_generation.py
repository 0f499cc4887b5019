"""Responses that outlive the rollouts which sample them: another one continues what is lost."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace

import aiohttp

from rollcall_protocol.prompts.sample_check import SampleBounds
from rollcall_protocol.wire.generation import GenerationLine, GenerationRequest, NewTokens
from rollcall_protocol.wire.ids import Version
from rollcall_protocol.wire.partial_responses import Response
from rollcall_protocol.wire.serving_rollouts import ServingRollout, ServingRollouts
from rollcall_runtime.generation.rollout_client import (
    RolloutAbuseError,
    RolloutBusyError,
    RolloutFullError,
    RolloutLostError,
    UnanswerableError,
    generated_lines,
)
from rollcall_runtime.generation.routing import RequestRoutes
from rollcall_runtime.worker.log_rate import REPEATED

log = logging.getLogger(__name__)

MOST_MOVES = 20  # rollouts that fail in a row without a new token, until the request does
LOOK_SECONDS = 0.1  # between two looks for a rollout, while none serves


class NoRolloutError(RuntimeError):
    """No rollout could go on with a request."""


class UnbelievableError(RolloutLostError):
    """A rollout said what no model samples: it lies, or the request makes every rollout say it."""


@dataclass(frozen=True, slots=True)
class GeneratedSoFar:
    """A response so far, its oldest token's version, and the `top` of its newest tokens."""

    response: Response
    oldest: Version | None
    top: tuple[tuple[tuple[int, float], ...], ...] = ()


class Generation:
    """Sends requests to the rollouts of `routes`; `moved` is called when one changes its rollout.

    What a rollout says beyond `bounds` is not believed. Belongs to one event loop.
    """

    def __init__(
        self, session: aiohttp.ClientSession, moved: Callable[[], None], bounds: SampleBounds
    ) -> None:
        self._session, self._moved, self._bounds = session, moved, bounds
        self.routes = RequestRoutes()
        self._changed = asyncio.Event()

    def replace(self, serving: ServingRollouts) -> None:
        """The coordinator's newest list of rollouts."""
        self.routes.replace(serving)
        self._changed.set()

    async def generate(self, asked: GenerationRequest) -> AsyncGenerator[GeneratedSoFar, None]:
        """The response after each piece, until it is finished. The caller bounds the time.

        NoRolloutError after MOST_MOVES rollouts that failed, or after the first one for a response
        of a schema, which another one cannot continue. UnanswerableError when two rollouts
        have refused the request, or the only one: a single one may lie. So is what cannot be
        believed: NoRolloutError when two said such things, or the only one. It counts against a
        rollout only when another one has gone on with the request.
        """
        response, oldest, failures = asked.begun, None, 0
        refusals: dict[str, Exception] = {}  # by the rollout's address
        suspect: ServingRollout | None = None
        while not response.finished:
            rollout = await self._rollout_for(asked, refusals)
            try:
                lines = generated_lines(self._session, rollout, replace(asked, begun=response))
                async with aclosing(lines):
                    async for line in lines:
                        assert line.new is not None  # noqa: S101 - generated_lines gives no other
                        self._check(line, rollout, asked, before=len(response.tokens))
                        response = line.new.after(response)
                        failures = 0 if line.new.tokens else failures
                        if suspect is not None and line.new.tokens:
                            self.routes.failed(suspect, time.monotonic())
                            suspect = None
                        found = [v for v in (oldest, line.oldest) if v is not None]
                        oldest = min(found, default=None)
                        yield GeneratedSoFar(response, oldest, line.new.top)
            except UnanswerableError as error:
                if refusals:
                    raise
                refusals[rollout.address] = error
            except UnbelievableError as error:
                refused = NoRolloutError(f"{error}; the request may be the cause")
                if refusals:
                    raise refused from error
                _check_continued(asked, response)
                refusals[rollout.address], suspect = refused, rollout
                self._moved()
                log.warning("a request is continued elsewhere: %s", error, extra=REPEATED)
            except RolloutLostError as error:
                failures += not isinstance(error, RolloutBusyError)
                self._avoid(rollout, error)
                self._moved()
                log.warning("a request is continued elsewhere: %s", error, extra=REPEATED)
                _check_continued(asked, response)
                if failures >= MOST_MOVES:
                    raise NoRolloutError(
                        f"{failures} rollouts failed, the last: {error}"
                    ) from error
            finally:
                self.routes.ended(rollout)

    def _avoid(self, rollout: ServingRollout, error: RolloutLostError) -> None:
        if isinstance(error, RolloutFullError):
            self.routes.full(rollout, time.monotonic())
        else:
            abuse = isinstance(error, RolloutAbuseError)
            self.routes.failed(rollout, time.monotonic(), abuse=abuse)

    def _check(
        self,
        line: GenerationLine,
        rollout: ServingRollout,
        asked: GenerationRequest,
        *,
        before: int,
    ) -> None:
        """UnbelievableError for what no rollout says behind `before` tokens of the response."""
        new = line.new or NewTokens((), (), ())
        bad = self._bounds.check_new(new, before=len(asked.prompt) + before, top=asked.top_logprobs)
        problem = bad.problem if bad is not None else ""
        if new.tokens and line.oldest is None:
            problem = problem or "tokens of no version"
        if problem:
            raise UnbelievableError(f"{rollout.pod} is not believed: {problem}")

    async def _rollout_for(
        self, asked: GenerationRequest, refusals: Mapping[str, Exception]
    ) -> ServingRollout:
        """One that has not refused the request. Raises the refusal if there is no other rollout."""
        while True:
            self._changed.clear()
            found = self.routes.choose(asked.prompt, time.monotonic(), without=refusals)
            if found is not None:
                return found
            if refusals and all(r.address in refusals for r in self.routes.rollouts):
                raise next(iter(refusals.values()))
            try:
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._changed.wait()
            except TimeoutError:
                continue


def _check_continued(asked: GenerationRequest, response: Response) -> None:
    """NoRolloutError if no other rollout can go on from where one was lost."""
    if asked.json_schema and response.tokens:
        problem = "the rollout was lost, and no other continues a response_format"
        raise NoRolloutError(f"{problem}: send the request again")
