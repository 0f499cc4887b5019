"""Blocking calls into a library, on threads that finish the call after its caller has gone.

A collective cannot be cancelled: it ends when the library lets it. So each call runs on a thread of
its own while the caller waits for a future. Abandoning fails the future at once; the thread stays
with whatever the call holds, and cleans up when the call returns.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from typing import Any, TypeVar

from rollcall_runtime.sync.errors import AbortedError, TimedOutError

T = TypeVar("T")


class AbandonableCalls:
    """Runs one call at a time until abandoned; then `cleanup` runs once, when no call is running.

    `abandoned` is set before anything else, for calls that can stop between two steps. The threads
    are not daemons: the interpreter waits for them at exit, because a C++ library whose thread
    returns during shutdown aborts the process. So every call must end by itself.
    """

    def __init__(self, name: str, *, cleanup: Callable[[], None]) -> None:
        self._name = name
        self._cleanup = cleanup
        self._lock = threading.Lock()
        self._running: Future[Any] | None = None
        self.abandoned = threading.Event()
        self.cleaned_up = threading.Event()

    def call(self, function: Callable[[], T], *, timeout: float) -> T:
        """Run `function` on a thread and wait `timeout` seconds for its result.

        Raises what it raises, AbortedError, or TimedOutError; TimedOutError too when an earlier
        call, whose caller timed out, is still running.
        """
        future: Future[T] = Future()
        with self._lock:
            if self.abandoned.is_set():
                raise AbortedError(f"{self._name} was aborted")
            if self._running is not None:
                raise TimedOutError(f"{self._name}: an earlier call is still running")
            self._running = future
        threading.Thread(target=self._run, name=self._name, args=(future, function)).start()
        try:
            return future.result(timeout)
        except TimeoutError as error:
            raise TimedOutError(f"{self._name}: timed out after {timeout:g} s") from error

    def abandon(self) -> None:
        """Fail the waiting caller with AbortedError; clean up as soon as no call is running."""
        with self._lock:
            if self.abandoned.is_set():
                return
            self.abandoned.set()
            running = self._running
        if running is None:
            threading.Thread(target=self._clean_up, name=self._name).start()
        else:
            _complete(running, error=AbortedError(f"{self._name} was aborted"))

    def _run(self, future: Future[T], function: Callable[[], T]) -> None:
        result, error = None, None
        try:
            result = function()
        except BaseException as caught:  # noqa: BLE001 - raised in the caller's thread
            error = caught
        with self._lock:
            self._running = None
            abandoned = self.abandoned.is_set()
        _complete(future, result=result, error=error)
        del error  # its traceback refers to this frame
        if abandoned:
            self._clean_up()

    def _clean_up(self) -> None:
        try:
            self._cleanup()
        finally:
            self.cleaned_up.set()


def _complete(
    future: Future[Any], *, result: object = None, error: BaseException | None = None
) -> None:
    try:
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)
    except InvalidStateError:
        return  # `abandon` failed the future first, or the call had ended before
