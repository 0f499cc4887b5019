"""The thread that decodes: it alone uses the model, so weights change between two tokens."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rollcall_runtime.rollout.inference_engine import NewTokens, PauseMode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rollcall_runtime.rollout.engines.batch_decoder import BatchDecoder, ResponseRow

ADMIT_STEPS = 16  # the most tokens that a new request waits for before it joins the batch
DELIVER_SECONDS = 0.05  # between two pieces of one response
STEP_SECONDS = 30.0  # far above any decode step of a model that is small enough for this
_CLOSED = "the engine is closed"


@dataclass(slots=True, eq=False)
class RunningRequest:
    """A row and where its pieces go: tokens, then None if it was aborted, or an error."""

    row: ResponseRow
    pieces: asyncio.Queue[NewTokens | Exception | None] = field(default_factory=asyncio.Queue)
    delivered: int = 0  # tokens

    def new_tokens(self) -> NewTokens:
        """What was not delivered yet; it counts as delivered from now on."""
        row, since = self.row, self.delivered
        self.delivered = len(row.tokens)
        tokens, logprobs, versions = row.tokens, row.logprobs, row.versions
        return NewTokens(
            tuple(tokens[since:]),
            tuple(logprobs[since:]),
            tuple(versions[since:]),
            row.finished,
            top=tuple(row.top[since:]),
        )


@dataclass(slots=True, eq=False)
class _Update:
    """`load` replaces the weights; `deadline` is for requests that it waits for."""

    load: Callable[[], None]
    version: int
    running: PauseMode
    deadline: float
    begun: bool = False
    done: Future[None] = field(default_factory=Future)


class DecodeThread:
    """Runs the requests of one event loop in one batch, which grows and shrinks.

    A batch is made anew to let requests in: when none is running, when as many wait as run, or
    after ADMIT_STEPS tokens, since each time all tokens so far are processed again. `decoder` makes
    a batch of rows, `step` samples a token for each of its rows with the weights of a version.
    """

    def __init__(
        self,
        *,
        decoder: Callable[[Sequence[ResponseRow]], BatchDecoder],
        step: Callable[[BatchDecoder, int], None],
    ) -> None:
        self._decoder_of, self._step = decoder, step
        self._loop: asyncio.AbstractEventLoop | None = None
        self._arriving: list[RunningRequest] = []  # in this turn of the event loop
        self._changed = threading.Condition()  # guards what follows
        self._waiting: list[RunningRequest] = []
        self._update: _Update | None = None
        self._closed = False
        self._version: int | None = None
        self._failure = ""
        # Of the thread alone:
        self._running: list[RunningRequest] = []
        self._decoder: BatchDecoder | None = None
        self._steps, self._delivered = 0, 0.0
        self._thread = threading.Thread(target=self._run, name="decode", daemon=True)

    @property
    def version(self) -> int | None:
        """The version that is loaded."""
        return self._version

    @property
    def failure(self) -> str:
        """Why nothing is decoded any more, or an empty string."""
        return self._failure

    def start(self) -> None:
        """Begin, for requests of the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def submit(self, row: ResponseRow) -> RunningRequest:
        """Add a request at the end of this turn of the event loop.

        RuntimeError before the first weights, and once nothing is decoded any more.
        """
        self._check()
        if self._version is None:
            raise RuntimeError("no weights have been loaded yet")
        if not self._arriving:
            asyncio.get_running_loop().call_soon(self._submit_arrived)
        request = RunningRequest(row)
        self._arriving.append(request)
        return request

    async def update(
        self, load: Callable[[], None], *, version: int, running: PauseMode, seconds: float
    ) -> None:
        """Call `load` between two steps, then serve `version`; see InferenceEngine."""
        self._check()
        update = _Update(load, version, running, time.monotonic() + seconds)
        update.done.set_running_or_notify_cancel()  # it is the thread's to end
        with self._changed:
            if self._update is not None:
                raise RuntimeError("another update of the weights is under way")
            self._update = update
            self._changed.notify()
        done = asyncio.wrap_future(update.done)
        try:
            await asyncio.wait([done], timeout=seconds + STEP_SECONDS)
        finally:
            self._withdraw(update)
        if not done.done() and update.begun:
            self._failure = f"loading version {version} did not end in {seconds + STEP_SECONDS:g} s"
            raise RuntimeError(self._failure)
        if not done.done():
            raise TimeoutError(f"a decode step did not end in {seconds + STEP_SECONDS:g} s")
        done.result()

    def close(self) -> None:
        """End all requests; waits for the step under way, at most STEP_SECONDS."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread.ident is not None:
            self._thread.join(STEP_SECONDS)

    def _check(self) -> None:
        if self._loop is None:
            raise RuntimeError("the engine is not started")
        if self._failure:
            raise RuntimeError(self._failure)
        if self._closed:
            raise RuntimeError(_CLOSED)

    def _submit_arrived(self) -> None:
        arrived, self._arriving = self._arriving, []
        with self._changed:
            closed = self._closed
            if not closed:
                self._waiting += arrived
                self._changed.notify()
        if closed:  # and the thread looks at nothing any more
            _put_all([(request, RuntimeError(self._failure or _CLOSED)) for request in arrived])

    def _withdraw(self, update: _Update) -> None:
        with self._changed:
            if self._update is update and not update.begun:
                self._update = None

    # --- in the thread -------------------------------------------------------------------------

    def _run(self) -> None:
        error: Exception = RuntimeError(_CLOSED)
        try:
            while self._wait():
                if not self._updated():
                    self._decode()
        except Exception as failure:  # noqa: BLE001 - whatever it was, requests must learn of it
            error = RuntimeError(f"decoding failed: {type(failure).__name__}: {failure}")
            self._failure = str(error)
        with self._changed:
            self._closed = True
            left = [*self._running, *self._waiting]
            if self._update is not None:
                self._update.done.set_exception(error)
        self._deliver([(request, error) for request in left])

    def _wait(self) -> bool:
        """Until there is something to do; False once the engine is closed. Admits requests."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._closed or self._update or self._waiting or self._running
            )
            waits = self._update is not None and self._update.running == PauseMode.WAIT
            if not waits:
                self._admit()
            return not self._closed

    def _admit(self) -> None:
        due = len(self._waiting) >= len(self._running) or self._steps >= ADMIT_STEPS
        if not self._waiting or not due:
            return
        admitted = [request for request in self._waiting if not request.row.ended]
        self._running, self._waiting = [*self._running, *admitted], []
        self._steps = 0
        if self._running:
            self._decoder = self._decoder_of([request.row for request in self._running])

    def _updated(self) -> bool:
        """Whether there was an update to make, and it was made or refused."""
        with self._changed:
            update = self._update
            if update is None or (update.running == PauseMode.WAIT and self._must_wait(update)):
                return False
            update.begun = True
        aborted = self._running if update.running == PauseMode.ABORT else []
        if aborted:
            self._deliver([(request, request.new_tokens()) for request in aborted])
            self._deliver([(request, None) for request in aborted])
            self._running = []
        update.load()
        self._version = update.version
        with self._changed:
            self._update = None
        update.done.set_result(None)
        return True

    def _must_wait(self, update: _Update) -> bool:
        if not self._running:
            return False
        if time.monotonic() < update.deadline:
            return True
        update.done.set_exception(
            TimeoutError(f"{len(self._running)} requests did not end before the update's deadline")
        )
        self._update = None
        return True

    def _decode(self) -> None:
        if self._decoder is None or self._version is None or not self._running:
            return
        self._running = [request for request in self._running if not request.row.ended]
        if not self._running:
            return
        self._step(self._decoder, self._version)
        self._steps += 1
        now = time.monotonic()
        everything = now - self._delivered >= DELIVER_SECONDS
        if everything:
            self._delivered = now
        due = [request for request in self._running if everything or request.row.finished]
        self._deliver([(request, request.new_tokens()) for request in due])
        self._running = [request for request in self._running if not request.row.ended]

    def _deliver(self, pieces: list[tuple[RunningRequest, NewTokens | Exception | None]]) -> None:
        if not pieces or self._loop is None:
            return
        try:
            self._loop.call_soon_threadsafe(_put_all, pieces)
        except RuntimeError:  # the event loop is closed, and so are the requests
            return


def _put_all(pieces: list[tuple[RunningRequest, NewTokens | Exception | None]]) -> None:
    for request, piece in pieces:
        request.pieces.put_nowait(piece)
