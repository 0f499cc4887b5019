"""Starts and ends the processes of containers, from a process that has imported torch already.

Importing torch and an engine takes seconds of processor time in each process of a job. A container
whose command is one of Rollcall's programs is forked here and runs that program's function, unless
its environment has what the imported modules would have read in another way. Any other is forked
and executed.

It ends everything that it has started when it ends itself, and when its client does.
"""

import importlib
import json
import os
import selectors
import signal
import socket
import sys
import tempfile
import traceback
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, NoReturn

from rollcall_local.kubelet.marks import MARK, end_all, mark_this_process
from rollcall_runtime.worker.parent_process import adopt_orphans, end_with_parent

PRELOADED = (
    "rollcall_runtime.cli",
    "rollcall_runtime.train.app",
    "rollcall_runtime.train.reference_app",
    "rollcall_runtime.train.engines.fsdp2",
    "rollcall_runtime.rollout.app",
    "rollcall_runtime.rollout.engines.tiny_engine",
    "rollcall_runtime.sync.engines.gloo",
    "torch.distributed.fsdp",
    "torch.distributed.checkpoint",
)
FORKED = ("rollcall-trainer", "rollcall-rollout", "rollcall-reference", "rollcall-front")
_READ_AT_IMPORT = ("HF_", "HUGGINGFACE_", "TRANSFORMERS_", "TORCH", "PYTORCH_", "PYTHON", "SYMPY_")
_READ_AT_IMPORT_TOO = frozenset({"HOME", "XDG_CACHE_HOME", "LOGLEVEL", "PROMETHEUS_MULTIPROC_DIR"})
MESSAGE_BYTES = 1 << 20
END_SECONDS = 10.0  # for what a container has left, once it was killed
_FOR_CONTAINERS = (signal.SIGINT, signal.SIGTERM)  # the runtime itself ends with its client
CANNOT_EXECUTE = 127


def is_read_at_import(name: str) -> bool:
    """Whether modules read this variable when they are imported, and not later."""
    started = name.startswith(_READ_AT_IMPORT) and name != "PYTHONPATH"  # which a fork follows
    return started or name in _READ_AT_IMPORT_TOO


def serve(descriptor: int, preloaded: Sequence[str]) -> None:
    """The runtime's process, until its client closes the socket (SOCK_SEQPACKET)."""
    client = socket.socket(fileno=descriptor)
    signal.pthread_sigmask(signal.SIG_BLOCK, _FOR_CONTAINERS)
    adopt_orphans()
    _preload(preloaded)
    code = 1
    try:
        client.send(json.dumps({"ready": True}).encode())
        _Runtime(client).run()
        code = 0
    except BaseException:  # noqa: BLE001 - the process ends, and its log says why
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)  # torch takes seconds to be taken down


def _preload(names: Sequence[str]) -> None:
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError as error:
            print(f"not imported beforehand: {name}: {error}", file=sys.stderr)
    sys.stdout.flush()  # else forks would write it
    sys.stderr.flush()


class _Runtime:
    def __init__(self, client: socket.socket) -> None:
        self._client = client
        self._containers: dict[int, str] = {}
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._wake, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake)
        self._selector = selectors.DefaultSelector()
        self._selector.register(client, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)

    def run(self) -> None:
        """Until the client is gone; then all that was started ends."""
        while True:
            ready = {key.fd for key, _ in self._selector.select()}
            if self._woken in ready:
                os.read(self._woken, 4096)
                self._report_ended()
            if self._client.fileno() in ready:
                request = self._client.recv(MESSAGE_BYTES)
                if not request:
                    break
                self._start(**json.loads(request))
        for pid in self._containers:
            os.kill(pid, signal.SIGKILL)
        end_all(self._containers, seconds=END_SECONDS)

    def _start(self, request: int, container: str, **more: Any) -> None:
        runtime = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            self._send({"failed": f"no process can be made: {error.strerror}", "request": request})
            return
        if pid == 0:
            self._leave()
            _become(runtime=runtime, container=container, **more)
        self._containers[pid] = container
        self._send({"started": pid, "request": request})

    def _leave(self) -> None:
        """The fork holds nothing of the runtime's."""
        signal.set_wakeup_fd(-1)
        self._selector.close()
        self._client.close()
        os.close(self._woken)
        os.close(self._wake)

    def _report_ended(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            container = self._containers.pop(pid, None)
            if container is not None:  # else: a process that one of them has left behind
                others = self._containers.keys()  # whose ends are reported in their turn
                left = end_all({pid: container}, seconds=END_SECONDS, others=others)
                if left:
                    print(
                        f"processes {left} of {container} do not end", file=sys.stderr, flush=True
                    )
                self._send({"ended": pid, "code": os.waitstatus_to_exitcode(status)})

    def _send(self, message: dict[str, Any]) -> None:
        with suppress(ConnectionError):  # the client is gone, as the next read says
            self._client.send(json.dumps(message).encode())


def _become(
    *,
    runtime: int,
    container: str,
    argv: list[str],
    environment: dict[str, str],
    folder: str,
    log: str,
) -> NoReturn:
    """The forked process: become the container's program. Never returns."""
    code = 1
    try:
        os.setsid()
        end_with_parent()
        if os.getppid() != runtime:  # it has ended before it could take this process along
            os._exit(code)
        mark_this_process(container)
        for number in (signal.SIGCHLD, *_FOR_CONTAINERS):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _FOR_CONTAINERS)  # also what came too early
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for stream, source in ((0, nothing), (1, out), (2, out)):
            os.dup2(source, stream)
        forked = argv[0] in FORKED and not _differs(environment)
        os.environ.clear()
        os.environ.update(environment | {MARK: container})
        code = _run(argv, folder, forked=forked)
    except SystemExit as error:
        code = _exit_code(error)
    except BaseException:  # noqa: BLE001 - as the interpreter does
        traceback.print_exc()
    finally:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _differs(environment: dict[str, str]) -> bool:
    """Whether modules would have read other values than in this process, when imported."""
    own = {name: value for name, value in environment.items() if is_read_at_import(name)}
    return any(os.environ.get(name) != value for name, value in own.items())


def _run(argv: list[str], folder: str, *, forked: bool) -> int:
    try:
        os.chdir(folder)
    except OSError as error:
        sys.exit(f"workingDir {folder}: {error.strerror}; name a folder of this machine")
    if forked:
        _prepare_interpreter(argv)
        found = entry_points(group="console_scripts")[argv[0]].load()()
        return int(found or 0)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # which Python ignores
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvpe(argv[0], argv, os.environ)  # noqa: S606 - no shell is wanted
    except OSError as error:
        print(f"{argv[0]}: {error.strerror}", file=sys.stderr)
    return CANNOT_EXECUTE


def _prepare_interpreter(argv: list[str]) -> None:
    """What a new one does with its arguments and environment, before it runs a program of ours."""
    more = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [folder for folder in more if folder and folder not in sys.path]
    sys.argv = list(argv)
    tempfile.tempdir = None  # what the runtime's imports found, not the container's TMPDIR
    # A trainer starts each of its ranks with this command.
    sys.orig_argv = [sys.executable, str(Path(sys.executable).with_name(argv[0])), *argv[1:]]
    sys.modules.pop("sitecustomize", None)
    try:
        importlib.import_module("sitecustomize")  # ours: `site` is on the container's PYTHONPATH
    except ModuleNotFoundError as error:
        if error.name != "sitecustomize":
            raise


def _exit_code(error: SystemExit) -> int:
    """As the interpreter understands it."""
    if error.code is None or isinstance(error.code, int):
        return error.code or 0
    print(error.code, file=sys.stderr)
    return 1


if __name__ == "__main__":
    serve(int(sys.argv[1]), sys.argv[2:])
