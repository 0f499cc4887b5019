"""Delivers completions to the coordinator: buffered, retried, idempotent."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import aiohttp

from rollcall_protocol.membership.stretched_bounds import StretchedBound
from rollcall_protocol.wire.messages import Completion, dumps
from rollcall_runtime.worker.asyncio_helpers import first_of
from rollcall_runtime.worker.backoff import BackoffDelays
from rollcall_runtime.worker.http_client import plain_session
from rollcall_runtime.worker.identity.own_tokens import TokenSource, bearer
from rollcall_runtime.worker.identity.tls import TlsContext
from rollcall_runtime.worker.name_look_ups import NameLookUps
from rollcall_runtime.worker.telemetry import RolloutMetrics

log = logging.getLogger(__name__)

CAPACITY = 64  # completions that may wait for the coordinator
POSTS_AT_ONCE = 4
FIRST_DELAY, LONGEST_DELAY = 0.1, 2.0  # seconds between attempts
ATTEMPT_SECONDS = 10.0  # on an idle machine
LONGEST_REFUSAL = 1000  # bytes that the log quotes
GIVE_UP_SECONDS = 600.0  # a lease has long expired by then


class CompletionSender:
    """Posts completions to `url` in the order they come, POSTS_AT_ONCE at a time.

    200: counted; 409: the lease is not current any more, 403: this pod holds none; 400: the
    completion will never count. After any other outcome it is sent again, with the token that is
    there then; attempts that got no answer in time give the next ones longer. `answered` is called
    after each completion that is not sent again. `names` looks the coordinator's name up; `tls` is
    for an https `url`.
    """

    def __init__(
        self,
        *,
        url: str,
        token: TokenSource,
        metrics: RolloutMetrics,
        answered: Callable[[], None],
        names: NameLookUps | None = None,
        tls: TlsContext | None = None,
    ) -> None:
        self._names = names or NameLookUps()
        self._url, self._token, self._tls, self._metrics = url, token, tls, metrics
        self._answered = answered
        self._queue: asyncio.Queue[Completion] = asyncio.Queue()
        self._unsent = 0
        self._delivered = asyncio.Event()
        self._delivered.set()
        self._waiting: set[asyncio.Timeout] = set()
        self._patience = StretchedBound(ATTEMPT_SECONDS)

    @property
    def backlog(self) -> int:
        """The number of completions without an answer."""
        return self._unsent

    def offer(self, completion: Completion) -> None:
        """Queue a completion; never waits. The agent asks for prompts by `backlog`."""
        self._unsent += 1
        self._delivered.clear()
        self._queue.put_nowait(completion)

    def retry(self) -> None:
        """Send all unanswered completions again now: a new stream to the coordinator is open.

        A completion that was sent to a pod that has ended gets neither an answer nor an error.
        """
        now = asyncio.get_running_loop().time()
        while self._waiting:
            self._waiting.pop().reschedule(now)

    async def flush(self, seconds: float) -> bool:
        """Wait until every completion is answered; False after `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                await self._delivered.wait()
        except TimeoutError:
            return False
        return True

    async def run(self) -> None:
        """Deliver completions until cancelled, POSTS_AT_ONCE at a time."""
        connector, none = self._names.connector(), aiohttp.ClientTimeout(total=None)
        async with plain_session(connector=connector, timeout=none) as session:
            await first_of(*(self._work(session) for _ in range(POSTS_AT_ONCE)))

    async def _work(self, session: aiohttp.ClientSession) -> None:
        while True:
            completion = await self._queue.get()
            try:
                outcome = await self._deliver(session, completion)
            finally:
                self._unsent -= 1
                if not self._unsent:
                    self._delivered.set()
            self._metrics.completions(outcome=outcome).inc()
            self._answered()

    async def _deliver(self, session: aiohttp.ClientSession, completion: Completion) -> str:
        body, give_up = dumps(completion).encode(), time.monotonic() + GIVE_UP_SECONDS
        backoff, outcome = BackoffDelays(first=FIRST_DELAY, longest=LONGEST_DELAY), ""
        while time.monotonic() < give_up:
            with suppress(TimeoutError):  # `retry` was called during the attempt or the delay
                async with self._unless_retried():
                    outcome = await self._attempt(session, body)
                    if outcome in _FINAL:
                        return outcome
                    delay = backoff.next_delay()
                    log.info(
                        "completion not delivered (%s), next attempt in %.1f s", outcome, delay
                    )
                    await asyncio.sleep(delay)
        log.error("completion dropped after %.0f s of attempts: %s", GIVE_UP_SECONDS, outcome)
        return "given_up"

    async def _attempt(self, session: aiohttp.ClientSession, body: bytes) -> str:
        """One of _FINAL, or why the attempt failed."""
        try:
            headers, tls = bearer(self._token()), self._tls() if self._tls else True
            timeout, began = aiohttp.ClientTimeout(total=self._patience.seconds), time.monotonic()
            async with session.post(
                self._url, data=body, headers=headers, ssl=tls, timeout=timeout
            ) as answer:
                self._patience.took(time.monotonic() - began)
                outcome = _OUTCOMES.get(answer.status, f"status {answer.status}")
                if outcome == "refused":
                    text = await answer.content.read(LONGEST_REFUSAL)
                    log.error("completion refused: %s", text.decode(errors="replace"))
                return outcome
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            if isinstance(error, TimeoutError):
                self._patience.passed()
            return f"{type(error).__name__}: {error}"

    @asynccontextmanager
    async def _unless_retried(self) -> AsyncIterator[None]:
        """Raise TimeoutError in the body when `retry` is called."""
        async with asyncio.timeout(None) as waiting:
            self._waiting.add(waiting)
            try:
                yield
            finally:
                self._waiting.discard(waiting)


_OUTCOMES = {200: "counted", 409: "dropped", 403: "dropped", 400: "refused", 413: "refused"}
_FINAL = frozenset(_OUTCOMES.values())
