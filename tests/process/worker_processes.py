"""Worker processes that start at once: forked from a process that has imported torch already.

Importing torch and the engines takes several seconds of CPU time, in each of the three or more
processes of a job. A worker forked here runs the same entry point with the same environment.
"""

import importlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import Future
from contextlib import suppress
from importlib.metadata import entry_points
from pathlib import Path
from types import TracebackType
from typing import Self

PRELOADED = (
    "rollcall_runtime.cli",
    "rollcall_plugins.front.openai.cli",
    "rollcall_runtime.train.app",
    "rollcall_runtime.train.reference_app",
    "rollcall_runtime.train.engines.fsdp2",
    "rollcall_plugins.front.openai.app",
    "rollcall_runtime.rollout.app",
    "rollcall_runtime.rollout.engines.tiny_engine",
    "rollcall_runtime.sync.engines.gloo",
    "torch.distributed.fsdp",
    "torch.distributed.checkpoint",
)
READ_AT_IMPORT = ("OMP_NUM_THREADS", "LD_LIBRARY_PATH", "LD_PRELOAD")
START_SECONDS = 120.0
END_SECONDS = 60.0
_MESSAGE_BYTES = 1 << 20


class ForkedWorker:
    """A worker process, with the methods of `subprocess.Popen` that the tests use."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.ended: Future[int] = Future()

    def poll(self) -> int | None:
        """Its exit code, negative for a signal's number; None while it runs."""
        return self.ended.result() if self.ended.done() else None

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, once it has ended; subprocess.TimeoutExpired."""
        try:
            return self.ended.result(timeout)
        except TimeoutError as error:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0) from error

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if not self.ended.done():
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it."""
        self.send_signal(signal.SIGKILL)


class WorkerForkServer:
    """Forks workers; a context manager that ends the server and every worker that still runs.

    `variables` are PYTHONPATH and those of READ_AT_IMPORT, with which the server imports torch.
    """

    def __init__(self, variables: dict[str, str]) -> None:
        self.variables = variables
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            program = f"from {__name__} import serve; serve({theirs.fileno()})"
            self._process = subprocess.Popen(
                [sys.executable, "-c", program],
                cwd=Path(__file__).parents[2],  # where Python finds this module
                pass_fds=[theirs.fileno()],
                env={"PATH": os.environ["PATH"], **variables},
            )
        self._workers: dict[int, ForkedWorker] = {}
        self._starting = threading.Lock()
        self._started: list[Future[ForkedWorker]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def serves(self, variables: dict[str, str]) -> bool:
        """Whether a worker with this environment can be forked from what was imported."""
        return all(variables.get(name) == self.variables.get(name) for name in READ_AT_IMPORT)

    def start(
        self, role: str, *, variables: dict[str, str], log: Path, imports: str = ""
    ) -> ForkedWorker:
        """A new worker, of the command `rollcall-ROLE`, whose environment and output these are.

        It first imports the module `imports`, if one is named.
        """
        values = {"role": role, "variables": variables, "log": str(log), "imports": imports}
        request = json.dumps(values).encode()
        with self._starting:
            started: Future[ForkedWorker] = Future()
            self._started.append(started)
            self._socket.send(request)
            return started.result(START_SECONDS)

    def _read(self) -> None:
        while message := self._socket.recv(_MESSAGE_BYTES):
            kind, pid, code = json.loads(message)
            if kind == "started":
                self._workers[pid] = ForkedWorker(pid)
                self._started.pop(0).set_result(self._workers[pid])
            else:
                self._workers.pop(pid).ended.set_result(code)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._socket.shutdown(socket.SHUT_WR)
        self._process.wait(END_SECONDS)
        self._reader.join(END_SECONDS)
        self._socket.close()


def serve(descriptor: int) -> None:
    """The server's process: forks on request, and reports starts and ends of workers."""
    for name in PRELOADED:
        __import__(name)
    threads = len(list(Path("/proc/self/task").iterdir()))
    assert threads == 1, f"{threads} threads: a fork would lose all but one"
    client = socket.socket(fileno=descriptor)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    running: set[int] = set()
    with selectors.DefaultSelector() as selector:
        selector.register(client, selectors.EVENT_READ)
        selector.register(woken, selectors.EVENT_READ)
        while True:
            ready = {key.fd for key, _ in selector.select()}
            if woken in ready:
                os.read(woken, 4096)
                _report_ended(client, running)
            if client.fileno() in ready:
                request = client.recv(_MESSAGE_BYTES)
                if not request:
                    break
                pid = os.fork()
                if pid == 0:
                    signal.set_wakeup_fd(-1)
                    selector.close()
                    for open_ in (woken, wake, client.fileno()):
                        os.close(open_)
                    _run(**json.loads(request))
                running.add(pid)
                client.send(json.dumps(["started", pid, None]).encode())
    for pid in running:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    os._exit(0)  # torch takes seconds to be taken down


def _report_ended(client: socket.socket, running: set[int]) -> None:
    for pid in list(running):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            running.remove(pid)
            code = os.waitstatus_to_exitcode(status)
            client.send(json.dumps(["ended", pid, code]).encode())


def _run(*, role: str, variables: dict[str, str], log: str, imports: str) -> None:
    """Become the worker; never returns."""
    code = 70
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for stream in (1, 2):
            os.dup2(out, stream)
        os.close(out)
        os.environ.clear()
        os.environ.update(variables)
        more = variables.get("PYTHONPATH", "").split(os.pathsep)
        sys.path[:0] = [folder for folder in more if folder not in sys.path]
        if imports:
            importlib.import_module(imports)
        sys.argv = [f"rollcall-{role}"]
        entry_points(group="console_scripts")[f"rollcall-{role}"].load()()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:  # noqa: BLE001 - as the interpreter does
        import traceback  # noqa: PLC0415

        traceback.print_exc()
        code = 1
    finally:
        os._exit(code)
