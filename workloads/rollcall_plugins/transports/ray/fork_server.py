"""The engine's side of the processes that call Ray; `process` has their side."""

import ipaddress
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from dataclasses import asdict, dataclass, replace
from typing import Any

from rollcall_runtime.sync.engines.common.library_process import (
    MESSAGE_BYTES,
    LibraryProcess,
    LibraryProcessError,
)
from rollcall_runtime.sync.network_interfaces import address_of

_MAIN = "import rollcall_plugins.transports.ray.process as m; m.main()"
_STDERR = 2
_END_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class ForkServerConfig:
    """The first message to the fork server.

    `address` is the member's, `interface` the network interface that has it. With `host` it starts
    Ray's GCS there, at `port` (0: any), which requires `token`; the GCS must start within `seconds`
    and writes to a folder of its own in `folder` (empty: the temporary one).
    """

    address: str
    interface: str
    slots: int
    slot_bytes: int
    host: bool
    port: int
    token: str
    folder: str
    seconds: float


class ForkServer:
    """A process that has imported torch and Ray, so that a fork of it can join at once.

    `gcs` is the address of the GCS that it hosts and `token` what the GCS requires; empty if it
    hosts none. Methods raise LibraryProcessError.
    """

    def __init__(self, config: ForkServerConfig, *, environment: dict[str, str]) -> None:
        self._lock = threading.Lock()
        self.token = config.token
        # Made here, so that it can be removed also if the process is killed.
        self._folder = ""
        if config.host:
            self._folder = tempfile.mkdtemp(prefix="rollcall-ray-", dir=config.folder or None)
            config = replace(config, folder=self._folder)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _MAIN, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=_STDERR,
                pass_fds=(theirs.fileno(),),
                env={
                    # PyTorch's store looks up the names of addresses and does not use them: a lost
                    # answer should not cost the resolver's usual five seconds.
                    "RES_OPTIONS": "timeout:1 attempts:1",
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
                    "OMP_NUM_THREADS": "1",  # a process that forks must not have threads
                    **environment,
                },
            )
        self._socket = ours
        self._socket.settimeout(config.seconds)
        try:
            self.gcs = str(self._request(json.dumps(asdict(config)).encode())[0]["gcs"])
        except LibraryProcessError:
            self.close()
            raise

    def fork(self, connection: int, shared: int) -> int:
        """Fork a rank that serves `connection`, a socket; returns a pidfd of it."""
        _, descriptors = self._request(b"fork", connection, shared)
        return descriptors[0]

    def close(self) -> None:
        """End the process, its forks and its GCS."""
        self._socket.close()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._folder:  # the process has removed it, unless it was killed
            shutil.rmtree(self._folder, ignore_errors=True)

    def _request(self, message: bytes, *descriptors: int) -> tuple[dict[str, Any], list[int]]:
        with self._lock:
            try:
                socket.send_fds(self._socket, [message], descriptors)
                text, found, _, _ = socket.recv_fds(self._socket, MESSAGE_BYTES, 1)
            except OSError as error:
                raise LibraryProcessError(
                    f"the Ray fork server does not answer: {error}"
                ) from error
        if not text:
            raise LibraryProcessError(
                "the Ray fork server exited; its standard error has the cause"
            )
        answer: dict[str, Any] = json.loads(text)
        if "error" in answer:
            raise LibraryProcessError(answer["error"])
        return answer, found


class RayProcess(LibraryProcess):
    """A fork of the fork server, which has the same `gcs` and `token`."""

    library = "Ray"

    def __init__(self, server: ForkServer, *, slots: int, slot_bytes: int) -> None:
        self._server, self._pidfd = server, -1
        self.gcs, self.token = server.gcs, server.token
        super().__init__(slots=slots, slot_bytes=slot_bytes)

    def _start(self, connection: int, shared: int) -> None:
        self._pidfd = self._server.fork(connection, shared)

    def _kill(self) -> None:
        try:
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            select.select([self._pidfd], [], [], _END_SECONDS)  # until it has exited
        except ProcessLookupError:
            return  # it has exited
        finally:
            os.close(self._pidfd)


def interface_of(address: str) -> str:
    """The network interface that has the address, empty if none has it as its first."""
    for _, name in socket.if_nameindex():
        try:
            found = address_of(name, like=address)
        except ValueError:  # it has no address of this kind
            continue
        if found == address:
            return name
        if name == "lo" and ipaddress.ip_address(address).is_loopback:
            return name
    return ""
