"""A process that the library starts beside the user's own program: asked, answered, and ended.

It is a process of its own because a C call in the program that holds Python's lock would otherwise
stop heartbeats, and members would be lost.
"""

import asyncio
import itertools
import logging
import queue
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from rollcall.errors import RollcallError
from rollcall_protocol import pod_contract
from rollcall_protocol.wire.library_link import CancelRequest, Failed, from_line, to_line

START_SECONDS = 300.0  # some engines import much, or wait for a device
END_SECONDS = 15.0

log = logging.getLogger(__name__)

M = TypeVar("M")


class ChildProcess:
    """One child process and the socket to it. Its methods may be called in any thread.

    `name` is what errors call it. It runs `module`, whose arguments are the socket's descriptor and
    `arguments`, and sends messages of the classes `answers`. It inherits `descriptors`.
    """

    def __init__(
        self,
        name: str,
        module: str,
        variables: Mapping[str, str],
        *,
        answers: tuple[type[Any], ...],
        arguments: Sequence[str] = (),
        descriptors: Sequence[int] = (),
    ) -> None:
        self._name, self._answers = name, answers
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._waiting: dict[int, Future[Any]] = {}
        self._pieces: dict[int, Callable[[Any], None]] = {}
        self._ended = ""  # why it ended
        self._closing = False
        self._ready: Future[Any] = Future()
        # Also for what the garbage collector frees, at any place: `put` may interrupt a `put`.
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._folder = tempfile.TemporaryDirectory(prefix="rollcall-")
        self._message = Path(self._folder.name) / "message"
        self._message.touch()
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, str(theirs.fileno()), *arguments],
                pass_fds=(theirs.fileno(), *descriptors),
                stdin=subprocess.DEVNULL,
                env={**variables, pod_contract.EXIT_MESSAGE: str(self._message)},
            )
        self._threads = [self._start(self._read), self._start(self._write)]

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def wait_for_end(self) -> None:
        """Wait until it has ended, without bound."""
        self._process.wait()

    def wait_until_ready(self) -> Any:
        """Its first message. RollcallError if it cannot start, with what it said."""
        try:
            return self._ready.result(START_SECONDS)
        except TimeoutError as error:
            raise RollcallError(
                f"{self._name} was not ready after {START_SECONDS:g} s; see its lines on standard "
                "error"
            ) from error

    def ask(
        self,
        make: Callable[[int], Any],
        expected: type[M],
        *,
        timeout: float | None = None,
        pieces: Callable[[Any], None] | None = None,
    ) -> M:
        """The answer to the request that `make` makes with its number. `pieces` come before it.

        RollcallError if it fails, or if the process ends; TimeoutError after `timeout` seconds.
        """
        with self._asked(make, pieces) as answer:
            found = answer.result(timeout)
        return self._checked(found, expected)

    async def ask_async(
        self, make: Callable[[int], Any], expected: type[M], *, pieces: Callable[[Any], None]
    ) -> M:
        """As `ask`, for asyncio; `pieces` are taken in a thread of this object."""
        with self._asked(make, pieces) as answer:
            # A caller that waits no more leaves the future to the reader.
            found = await asyncio.shield(asyncio.wrap_future(answer))
        return self._checked(found, expected)

    def send(self, message: Any) -> None:
        """Nothing happens once the process has ended: the reader says why."""
        self._lines.put(to_line(message))

    def close(self) -> None:
        """End the process; harmless twice."""
        self._closing = True
        self._shut()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for thread in self._threads:
            thread.join(END_SECONDS)
        self._socket.close()
        self._folder.cleanup()

    # --- for derived classes -------------------------------------------------------------------

    def is_ready(self, message: Any) -> None:
        """The process' first message has come, for `wait_until_ready`."""
        self._ready.set_result(message)

    def take(self, message: Any) -> None:
        """A message, in the reader's thread: an answer, unless a derived class knows it."""
        with self._lock:
            waiting = self._waiting.pop(message.request, None)
            if waiting is not None:
                waiting.set_result(message)
        if waiting is None:
            self.not_awaited(message)

    def take_piece(self, message: Any) -> None:
        """A piece of an answer that is still to come."""
        with self._lock:
            take = self._pieces.get(message.request)
        if take is not None:
            take(message)

    def not_awaited(self, message: Any) -> None:
        """An answer that came when its request was cancelled."""

    # --- inside --------------------------------------------------------------------------------

    @contextmanager
    def _asked(
        self, make: Callable[[int], Any], pieces: Callable[[Any], None] | None
    ) -> Iterator[Future[Any]]:
        """A request that is sent, and its answer; an error of the caller's cancels it."""
        number, answer = next(self._numbers), Future[Any]()
        with self._lock:
            if self._ended:
                raise RollcallError(self._ended)
            self._waiting[number] = answer
            if pieces is not None:
                self._pieces[number] = pieces
        try:
            self.send(make(number))
            yield answer
        except BaseException:  # such as KeyboardInterrupt: the caller waits no more
            self.send(CancelRequest(number))
            with self._lock:
                self._waiting.pop(number, None)
            if answer.done() and answer.exception() is None:
                self.not_awaited(answer.result())
            raise
        finally:
            with self._lock:
                self._waiting.pop(number, None)
                self._pieces.pop(number, None)

    def _checked(self, found: Any, expected: type[M]) -> M:
        if isinstance(found, Failed):
            raise RollcallError(found.error)
        if not isinstance(found, expected):
            raise RollcallError(f"{self._name} answered with {type(found).__name__}")
        return found

    def _start(self, run: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=run, name="rollcall", daemon=True)
        thread.start()
        return thread

    def _shut(self) -> None:
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # it has ended already

    def _write(self) -> None:
        while (line := self._lines.get()) is not None:
            try:
                self._socket.sendall(line)
            except OSError:
                return  # the reader says why it ended

    def _read(self) -> None:
        problem = ""
        with self._socket.makefile("rb") as lines:
            try:
                for line in lines:
                    self.take(from_line(line, self._answers))
            except (OSError, ValueError) as error:
                problem = f"{error}"
        self._end(problem)

    def _end(self, problem: str) -> None:
        """All who wait learn why the process ended."""
        self._shut()
        self._lines.put(None)
        try:
            code: int | None = self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            code = None
        said = self._message.read_text(errors="replace").strip() if self._message.exists() else ""
        why = said or problem or f"exit code {code}; see its lines on standard error"
        if self._closing:
            why = "the library was closed"
        with self._lock:
            self._ended = f"{self._name} has ended: {why}"
            waiting = list(self._waiting.values())
            self._waiting.clear()
        if self._ready.done() and not self._closing:
            log.error("%s", self._ended)
        error = RollcallError(self._ended)
        for future in [self._ready, *waiting]:
            if not future.done():
                future.set_exception(error)


def job_environment(
    variables: Mapping[str, str], *needed: str, who: str, place: str
) -> dict[str, str]:
    """The process' environment. RollcallError if `variables` lack one that is `needed`."""
    missing = next((name for name in needed if not variables.get(name)), None)
    if missing is not None:
        raise RollcallError(f"{who}: {missing} is not set, so that this is no {place}")
    return dict(variables)
