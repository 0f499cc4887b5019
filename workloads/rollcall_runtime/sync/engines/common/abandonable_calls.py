"""Blocking calls into a library, on threads that see them through when their callers walk away.

A collective cannot be cancelled: it ends when the library lets it. So a session's calls run on a
thread each, the caller waits for a future, and giving up fails the future; the thread stays behind
with whatever the call holds, and cleans up.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from typing import Any, TypeVar

from rollcall_runtime.sync.errors import AbortedError, TimedOutError

T = TypeVar("T")


class Owner:
    """Runs one call at a time until abandoned; then `cleanup` runs once, when no call does.

    `abandoned` is set first of all, for calls that can stop between two steps. The threads are not
    daemons: the interpreter's end waits for them, because a C++ library whose thread comes back
    while the interpreter goes down aborts the process. So every call must end by itself.
    """

    def __init__(self, name: str, *, cleanup: Callable[[], None]) -> None:
        self._name = name
        self._cleanup = cleanup
        self._lock = threading.Lock()
        self._running: Future[Any] | None = None
        self.abandoned = threading.Event()
        self.gone = threading.Event()

    def call(self, function: Callable[[], T], *, timeout: float) -> T:
        """Run `function` on a thread. Raises what it raises, AbortedError or TimedOutError.

        TimedOutError too when an earlier call, whose caller gave up, has not ended yet.
        """
        future: Future[T] = Future()
        with self._lock:
            if self.abandoned.is_set():
                raise AbortedError(f"{self._name} was aborted")
            if self._running is not None:
                raise TimedOutError(f"{self._name}: an earlier call is still stuck")
            self._running = future
        threading.Thread(target=self._run, name=self._name, args=(future, function)).start()
        try:
            return future.result(timeout)
        except TimeoutError as error:
            raise TimedOutError(f"{self._name}: not done after {timeout:g} s") from error

    def abandon(self) -> None:
        """Fail the waiting caller with AbortedError and clean up as soon as that can be done."""
        with self._lock:
            if self.abandoned.is_set():
                return
            self.abandoned.set()
            running = self._running
        if running is None:
            threading.Thread(target=self._finish, name=self._name).start()
        else:
            _settle(running, error=AbortedError(f"{self._name} was aborted"))

    def _run(self, future: Future[T], function: Callable[[], T]) -> None:
        result, error = None, None
        try:
            result = function()
        except BaseException as caught:  # noqa: BLE001 - the caller's to handle, in its thread
            error = caught
        with self._lock:
            self._running = None
            abandoned = self.abandoned.is_set()
        _settle(future, result=result, error=error)
        del error  # its traceback leads back here
        if abandoned:
            self._finish()

    def _finish(self) -> None:
        try:
            self._cleanup()
        finally:
            self.gone.set()


def _settle(
    future: Future[Any], *, result: object = None, error: BaseException | None = None
) -> None:
    try:
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)
    except InvalidStateError:
        return  # `abandon` has answered the caller, or the call had ended
