"""The process of the job's coordinator: started, asked, and ended by the trainer's.

It is a process of its own because a C call in the trainer that holds Python's lock would otherwise
stop heartbeats, and rollouts would be lost.
"""

import itertools
import socket
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

from rollcall.errors import RollcallError
from rollcall_protocol import pod_contract
from rollcall_protocol.wire.external_trainer import (
    COORDINATOR_MESSAGES,
    CancelRequest,
    CoordinatorReady,
    Failed,
    Generated,
    LibraryMessage,
    MemberChange,
    TrainingIsOver,
    from_line,
    to_line,
)

START_SECONDS = 300.0  # some engines import much, or wait for a device
END_SECONDS = 15.0
MOST_EVENTS = 10_000  # kept until they are read; the oldest are dropped first

M = TypeVar("M")


class CoordinatorProcess:
    """One child process and the socket to it. Its methods may be called in any thread.

    `variables` is its environment, `weights` the descriptor of the file that it reads weights from.
    """

    def __init__(self, variables: dict[str, str], *, weights: int) -> None:
        self.events: deque[MemberChange] = deque(maxlen=MOST_EVENTS)
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._waiting: dict[int, Future[Any]] = {}
        self._pieces: dict[int, Callable[[Generated], None]] = {}
        self._ended = ""  # why it ended
        self._ready: Future[CoordinatorReady | TrainingIsOver] = Future()
        self._folder = tempfile.TemporaryDirectory(prefix="rollcall-")
        self._message = Path(self._folder.name) / "message"
        self._message.touch()
        self._socket, theirs = socket.socketpair()
        with theirs:
            descriptors = (theirs.fileno(), weights)
            self._process = subprocess.Popen(
                [sys.executable, "-m", "rollcall_runtime.external", *map(str, descriptors)],
                pass_fds=descriptors,
                stdin=subprocess.DEVNULL,
                env={**variables, pod_contract.EXIT_MESSAGE: str(self._message)},
            )
        self._reader = threading.Thread(target=self._read, name="rollcall", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def wait_for_end(self) -> None:
        """Wait until it has ended, without bound."""
        self._process.wait()

    def wait_until_ready(self) -> CoordinatorReady | TrainingIsOver:
        """Wait until it listens. RollcallError if it cannot, with what it said."""
        try:
            return self._ready.result(START_SECONDS)
        except TimeoutError as error:
            raise RollcallError(
                f"Trainer: the coordinator's process was not ready after {START_SECONDS:g} s; see "
                "its lines on standard error"
            ) from error

    def ask(
        self,
        make: Callable[[int], LibraryMessage],
        expected: type[M],
        *,
        timeout: float | None = None,
        pieces: Callable[[Generated], None] | None = None,
    ) -> M:
        """The answer to the request that `make` makes with its number. `pieces` come before it.

        RollcallError if it fails, or if the process ends; TimeoutError after `timeout` seconds.
        """
        number, answer = next(self._numbers), Future[Any]()
        with self._lock:
            if self._ended:
                raise RollcallError(self._ended)
            self._waiting[number] = answer
            if pieces is not None:
                self._pieces[number] = pieces
        try:
            self._send(make(number))
            found = answer.result(timeout)
        except BaseException:  # such as KeyboardInterrupt: nobody waits any more
            self._send(CancelRequest(number))
            raise
        finally:
            with self._lock:
                self._waiting.pop(number, None)
                self._pieces.pop(number, None)
        if isinstance(found, Failed):
            raise RollcallError(found.error)
        if not isinstance(found, expected):
            raise RollcallError(f"the coordinator answered with {type(found).__name__}")
        return found

    def close(self) -> None:
        """End the process; harmless twice."""
        self._shut()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(END_SECONDS)
        self._socket.close()
        self._folder.cleanup()

    # --- inside --------------------------------------------------------------------------------

    def _shut(self) -> None:
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # it has ended already

    def _send(self, message: LibraryMessage) -> None:
        line = to_line(message)
        with self._lock:
            try:
                self._socket.sendall(line)
            except OSError:
                return  # the reader says why it ended

    def _read(self) -> None:
        problem = ""
        with self._socket.makefile("rb") as lines:
            try:
                for line in lines:
                    self._take(from_line(line, COORDINATOR_MESSAGES))
            except (OSError, ValueError) as error:
                problem = f"{error}"
        self._end(problem)

    def _take(self, message: Any) -> None:
        if isinstance(message, MemberChange):
            self.events.append(message)
        elif isinstance(message, (CoordinatorReady, TrainingIsOver)):
            self._ready.set_result(message)
        elif isinstance(message, Generated):
            with self._lock:
                take = self._pieces.get(message.request)
            if take is not None:
                take(message)
        else:
            with self._lock:
                waiting = self._waiting.pop(message.request, None)
            if waiting is not None:
                waiting.set_result(message)

    def _end(self, problem: str) -> None:
        """All who wait learn why the process ended."""
        self._shut()
        try:
            code: int | None = self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            code = None
        said = self._message.read_text(errors="replace").strip() if self._message.exists() else ""
        why = said or problem or f"exit code {code}; see its lines on standard error"
        with self._lock:
            self._ended = f"the coordinator's process has ended: {why}"
            waiting = list(self._waiting.values())
            self._waiting.clear()
        error = RollcallError(self._ended)
        for future in [self._ready, *waiting]:
            if not future.done():
                future.set_exception(error)


def trainer_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """The coordinator's environment. RollcallError if `variables` are of no trainer of a job."""
    if not variables.get(pod_contract.CONFIG):
        raise RollcallError(
            f"Trainer: {pod_contract.CONFIG} is not set, so that this is no trainer of a job; run "
            "the program in an RLJob with trainer.kind: External, such as by `rollcall local run`"
        )
    return dict(variables)
