"""A thread that owns blocking calls into a library, so that their callers can walk away.

A collective cannot be cancelled: it ends when the library lets it. So a session's calls run here,
the caller waits for a future, and giving up fails the future; the thread stays behind with
whatever the call holds, sees it through and cleans up.
"""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from typing import Any, TypeVar

from rollcall_runtime.sync.errors import AbortedError, TimedOutError

T = TypeVar("T")


class OwnerThread:
    """Runs calls one after another until abandoned, then `cleanup`, then ends.

    `abandoned` is set first of all, for calls that can stop between two steps.
    """

    def __init__(self, name: str, *, cleanup: Callable[[], None]) -> None:
        self._name = name
        self._cleanup = cleanup
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]
        self._calls = queue.SimpleQueue()
        self._pending: set[Future[Any]] = set()
        self._lock = threading.Lock()
        # A daemon: a stuck library call must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.abandoned = threading.Event()

    def start(self) -> None:
        """Start the thread; once."""
        self._thread.start()

    def join(self, timeout: float) -> bool:
        """Wait for the thread's end, at most `timeout` seconds; whether it ended."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def call(self, function: Callable[[], T], *, timeout: float) -> T:
        """Run `function` on the thread. Raises what it raises, AbortedError or TimedOutError."""
        future: Future[T] = Future()
        with self._lock:
            if self.abandoned.is_set():
                raise AbortedError(f"{self._name} was aborted")
            self._pending.add(future)
            self._calls.put((future, function))
        try:
            return future.result(timeout)
        except TimeoutError as error:
            raise TimedOutError(f"{self._name}: not done after {timeout:g} s") from error
        finally:
            with self._lock:
                self._pending.discard(future)

    def abandon(self) -> None:
        """Fail every waiting caller with AbortedError; the thread ends when it can."""
        with self._lock:
            self.abandoned.set()
            waiting = tuple(self._pending)
        for future in waiting:
            _settle(future, error=AbortedError(f"{self._name} was aborted"))
        self._calls.put(None)

    def _run(self) -> None:
        while (item := self._calls.get()) is not None and not self.abandoned.is_set():
            future, function = item
            try:
                result = function()
            except BaseException as error:  # noqa: BLE001 - a queue's boundary: the caller gets it
                _settle(future, error=error)
            else:
                _settle(future, result=result)
            # What the call held (buffers, exception frames) must not live until the next one.
            item = future = function = result = None  # type: ignore[assignment]
        self._cleanup()


def _settle(
    future: Future[Any], *, result: object = None, error: BaseException | None = None
) -> None:
    try:
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)
    except InvalidStateError:
        return  # the caller has already been answered by `abandon`, or the call had ended
