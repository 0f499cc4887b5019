"""The client of the container runtimes: one for each environment of Python."""

import asyncio
import errno
import itertools
import json
import logging
import os
import signal
import socket
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from rollcall_local.kubelet import container_runtime
from rollcall_local.kubelet.container_runtime import (
    END_SECONDS,
    MESSAGE_BYTES,
    PRELOADED,
    is_read_at_import,
)
from rollcall_local.kubelet.marks import MARK, ROOM, ROOM_BYTES, end_all
from rollcall_local.kubelet.pod_environment import inherited

log = logging.getLogger(__name__)

OWN_RUNTIME = ("OMP_NUM_THREADS", "LD_LIBRARY_PATH", "LD_PRELOAD")
"""Variables of which each value has a runtime of its own, which imports torch with it."""
START_SECONDS = 300.0  # of a runtime
ANSWER_SECONDS = 60.0  # to a request, while it may still end other containers


class CannotStartError(Exception):
    """A container cannot be started now; the message says why."""

    reason = "CreateContainerError"  # in the container's status


@dataclass(slots=True)
class ContainerProcess:
    """The first process of a container; `ended` has its exit code, or less a signal's number."""

    pid: int
    container: str
    ended: asyncio.Future[int] = field(repr=False)

    def send(self, number: signal.Signals) -> None:
        """A signal, if it still runs."""
        if not self.ended.done():
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)


class ContainerRuntime:
    """One runtime process, which `start` makes."""

    def __init__(
        self, process: subprocess.Popen[bytes], connection: socket.socket, log_file: Path
    ) -> None:
        self._process, self._socket, self._log_file = process, connection, log_file
        self._ready = asyncio.Event()
        self._numbers = itertools.count()
        self._starting: dict[int, tuple[str, asyncio.Future[ContainerProcess]]] = {}
        self._running: dict[int, ContainerProcess] = {}
        self._clearing: asyncio.Task[None] | None = None
        asyncio.get_running_loop().add_reader(connection, self._read)

    @classmethod
    def start(
        cls, python: Path, variables: dict[str, str], log_file: Path, preloaded: Sequence[str]
    ) -> Self:
        """A runtime of an environment (its Python), which imports `preloaded` meanwhile.

        `variables` are those of OWN_RUNTIME. CannotStartError.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        own = {MARK, *OWN_RUNTIME, *filter(is_read_at_import, os.environ)} - inherited().keys()
        kept = {name: value for name, value in os.environ.items() if name not in own}
        with theirs, log_file.open("ab") as out:
            try:
                process = subprocess.Popen(
                    [
                        python,
                        "-m",
                        container_runtime.__name__,
                        str(theirs.fileno()),
                        *preloaded,
                    ],
                    pass_fds=[theirs.fileno()],
                    env={**kept, **variables, ROOM: " " * ROOM_BYTES},
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    start_new_session=True,
                )
            except OSError as error:
                ours.close()
                raise CannotStartError(f"{python}: {error.strerror}; see --image") from error
        return cls(process, ours, log_file)

    @property
    def has_ended(self) -> bool:
        """Whether it is of no use any more."""
        return self._clearing is not None

    async def ready(self) -> None:
        """Wait until it can start containers; CannotStartError."""
        try:
            async with asyncio.timeout(START_SECONDS):
                await self._ready.wait()
        except TimeoutError as error:
            message = f"the container runtime is not ready after {START_SECONDS:.0f} s"
            raise CannotStartError(f"{message}; see {self._log_file}") from error
        if self.has_ended:
            raise CannotStartError(self._last_words())

    async def run(
        self,
        *,
        container: str,
        argv: Sequence[str],
        environment: dict[str, str],
        folder: Path,
        log_file: Path,
    ) -> ContainerProcess:
        """Start a container; CannotStartError. `ready` comes first.

        If its caller has given up when it has started, it is killed.
        """
        if self.has_ended:
            raise CannotStartError(self._last_words())
        started: asyncio.Future[ContainerProcess] = asyncio.get_running_loop().create_future()
        request = next(self._numbers)
        self._send(
            request=request,
            container=container,
            argv=argv,
            environment=environment,
            folder=str(folder),
            log=str(log_file),
        )
        self._starting[request] = container, started
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await asyncio.shield(started)
        except TimeoutError as error:
            started.add_done_callback(_kill)
            message = f"the container runtime has not answered for {ANSWER_SECONDS:.0f} s"
            raise CannotStartError(f"{message}; see {self._log_file}") from error
        except asyncio.CancelledError:
            started.add_done_callback(_kill)
            raise

    async def close(self) -> None:
        """End it, and with it each container that still runs."""
        await self._end()

    def _send(self, **request: Any) -> None:
        try:
            self._socket.send(json.dumps(request).encode())
        except OSError as error:
            message = f"the container runtime takes no request: {error.strerror}"
            if error.errno == errno.EMSGSIZE:
                message = "its command and environment are too long; give it a file instead"
            raise CannotStartError(message) from error

    def _read(self) -> None:
        try:
            message = self._socket.recv(MESSAGE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            message = b""
        if message:
            self._take(json.loads(message))
        else:
            self._end()

    def _take(self, message: dict[str, Any]) -> None:
        if "ready" in message:
            self._ready.set()
        elif "started" in message:
            container, started = self._starting.pop(message["request"])
            ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            process = ContainerProcess(message["started"], container, ended)
            self._running[process.pid] = process
            started.set_result(process)
        elif "failed" in message:
            _, started = self._starting.pop(message["request"])
            started.set_exception(CannotStartError(message["failed"]))
        else:
            self._running.pop(message["ended"]).ended.set_result(message["code"])

    def _end(self) -> asyncio.Task[None]:
        """It has died, or is to end; once its containers have ended the task is done."""
        if self._clearing is None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()  # upon which it ends
            self._clearing = asyncio.create_task(self._clear(), name="end of a container runtime")
            self._ready.set()
            for _, started in self._starting.values():
                started.set_exception(CannotStartError(self._last_words()))
            self._starting.clear()
        return self._clearing

    async def _clear(self) -> None:
        """End what it has left if it could not."""
        try:
            await asyncio.to_thread(self._process.wait, 2 * END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            await asyncio.to_thread(self._process.wait)
        first = {process.pid: process.container for process in self._running.values()}
        left = await asyncio.to_thread(end_all, first, seconds=END_SECONDS)
        if left:
            log.warning("Processes %s of containers do not end", left)
        for process in self._running.values():
            process.ended.set_result(-int(signal.SIGKILL))
        self._running.clear()

    def _last_words(self) -> str:
        text = self._log_file.read_text(errors="replace").strip().splitlines()
        return f"the container runtime has ended: {text[-1] if text else 'it wrote nothing'}"


def _kill(started: asyncio.Future[ContainerProcess]) -> None:
    if started.exception() is None:
        started.result().send(signal.SIGKILL)


class ContainerRuntimes:
    """Runtimes by environment and by the variables that are read at import, made when needed."""

    def __init__(self, logs: Path, *, preloaded: Sequence[str] = PRELOADED) -> None:
        """`logs` is the folder of their logs; `preloaded` are modules that they import first."""
        self._folder, self._preloaded = logs, preloaded
        self._logs: dict[tuple[Path, tuple[str, ...]], Path] = {}
        self._runtimes: dict[Path, ContainerRuntime] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def of(self, python: Path, environment: dict[str, str]) -> ContainerRuntime:
        """The one that has imported torch with these variables; CannotStartError.

        One that has ended is followed by another.
        """
        values = {name: environment[name] for name in OWN_RUNTIME if name in environment}
        key = python, tuple(f"{name}={value}" for name, value in values.items())
        log_file = self._logs.setdefault(key, self._folder / f"runtime-{len(self._logs)}.log")
        runtime = self._runtimes.get(log_file)
        if runtime is not None and runtime.has_ended:
            closing = asyncio.create_task(runtime.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
            runtime = None
        if runtime is None:
            runtime = ContainerRuntime.start(python, values, log_file, self._preloaded)
            self._runtimes[log_file] = runtime
        return runtime

    async def close(self) -> None:
        """End all of them."""
        closing = (runtime.close() for runtime in self._runtimes.values())
        await asyncio.gather(*self._closing, *closing)
