"""The processes that call Ray: a fork server that has imported it, and a fork for each group.

The fork server, `main`, imports torch and Ray once, without starting a thread, and is the parent of
Ray's GCS where this member hosts one. A fork is the only rank of its group in its process, because
`ray.util.collective` builds groups on torch.distributed's default world, of which a process has
one; so several groups can exist, and a fork that hangs can be killed. All exit with the engine.

`ray.util.collective` expects to be called in a Ray actor. A fork claims to be one, and has a client
of the GCS, which is all that a gloo group uses of Ray. It leaves its group by exiting, because
`destroy_collective_group` looks for an actor, and keeps torch's default world.
"""

import json
import mmap
import os
import shutil
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ray
import torch
from ray._private import services, worker
from ray._raylet import GcsClient
from ray.experimental import internal_kv
from ray.util import collective

from rollcall_plugins.transports.ray.fork_server import ForkServerConfig
from rollcall_runtime.sync.engines.common.library_process import MESSAGE_BYTES, CallReceiver
from rollcall_runtime.worker.parent_process import end_with_parent

_POLL_SECONDS = 0.01
_LOG_TAIL = 400  # characters of the GCS's log in an error


class _Gcs:
    """Ray's own key-value store, without the rest of a Ray node: no raylet, no dashboard."""

    def __init__(self, config: ForkServerConfig) -> None:
        self._config = config
        self._folder = Path(config.folder)
        os.environ["RAY_AUTH_TOKEN"] = config.token
        self._port = self._start(config.port)
        self.address = f"{config.address}:{self._port}"

    def restart_if_dead(self) -> None:
        """Start it again at the same address, if it has exited."""
        if self._process.poll() is not None:
            self.close()
            self._start(self._port)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()  # or it might still write to the folder
        shutil.rmtree(self._folder, ignore_errors=True)

    def _start(self, port: int) -> int:
        self._folder.mkdir(exist_ok=True)
        folder = str(self._folder)
        self._process = services.start_gcs_server(
            redis_address="",
            log_dir=folder,
            stdout_filepath=f"{folder}/gcs.out",
            stderr_filepath=f"{folder}/gcs.err",
            session_name=self._folder.name,
            config={},
            fate_share=True,  # it is killed when this process ends
            gcs_server_port=port,
            metrics_agent_port=0,
            node_ip_address=self._config.address,
            session_dir=folder,
            node_id=ray.NodeID.from_random().hex(),
        ).process
        return self._await_port(self._config.seconds)

    def _await_port(self, seconds: float) -> int:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for file in self._folder.glob("gcs_server_port_*"):
                if file.suffix != ".tmp":  # it is renamed when it is whole
                    return int(file.read_text())
            if (code := self._process.poll()) is not None:
                log = (self._folder / "gcs.out").read_text()[-_LOG_TAIL:]
                raise RuntimeError(f"Ray's GCS exited with code {code}: {log}")
            time.sleep(_POLL_SECONDS)
        raise RuntimeError(f"Ray's GCS did not start within {seconds:g} s")


class _Rank:
    """One rank of one group, on the main thread of a fork."""

    def __init__(self, config: ForkServerConfig, shared: int) -> None:
        self._config = config
        memory = mmap.mmap(shared, config.slots * config.slot_bytes)
        whole = torch.frombuffer(memory, dtype=torch.uint8)
        size = config.slot_bytes
        self._slots = [whole[slot * size : (slot + 1) * size] for slot in range(config.slots)]
        self._group = ""

    def join(
        self, gcs: str, token: str, group: str, size: int, rank: int, seconds: float
    ) -> dict[str, Any]:
        """Create the group; waits for all ranks."""
        if token:
            os.environ["RAY_AUTH_TOKEN"] = token
        os.environ["USE_LIBUV"] = "0"  # Debian's PyTorch is built without it
        if self._config.interface:
            os.environ["GLOO_SOCKET_IFNAME"] = self._config.interface
        worker.global_worker.mode = ray.WORKER_MODE
        # The address that rank 0 gives the other ranks.
        worker._global_node = SimpleNamespace(node_ip_address=self._config.address)  # noqa: SLF001
        internal_kv._initialize_internal_kv(GcsClient(address=gcs))  # noqa: SLF001
        self._group = group
        collective.init_collective_group(
            size, rank, backend="gloo", group_name=group, gloo_timeout=max(int(seconds * 1000), 1)
        )
        return {}

    def broadcast(self, slot: int, nbytes: int) -> dict[str, Any]:
        """Send a slot from rank 0, or fill it."""
        collective.broadcast(self._slots[slot][:nbytes], src_rank=0, group_name=self._group)
        return {}


def _serve(receiver: CallReceiver, rank: _Rank) -> None:
    threading.Thread(target=receiver.listen, daemon=True).start()
    receiver.answer()  # it has started
    while True:
        call = receiver.calls.get()
        try:
            receiver.answer(**getattr(rank, call.pop("call"))(**call))
        except (RuntimeError, ValueError, OSError, ray.exceptions.RayError) as error:
            receiver.answer(error=str(error).partition("\n")[0])  # what follows is a stack


def _fork(config: ForkServerConfig, control: socket.socket, connection: int, shared: int) -> int:
    """Fork a rank, which exits with this process; returns a pidfd of it."""
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return os.pidfd_open(pid)
    try:
        end_with_parent()
        if os.getppid() == parent:
            control.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _serve(CallReceiver(socket.socket(fileno=connection)), _Rank(config, shared))
    finally:
        os._exit(1)  # never return into the parent's code


def _serve_fork_requests(
    config: ForkServerConfig, control: socket.socket, gcs: _Gcs | None
) -> None:
    """Fork whenever two descriptors arrive, until the engine closes the socket."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # exited forks need no wait
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, MESSAGE_BYTES, 2)
        if not message:
            return
        if gcs is not None:
            gcs.restart_if_dead()
        try:
            pidfd = _fork(config, control, *descriptors)
        except OSError as error:
            control.send(json.dumps({"error": f"cannot fork: {error}"}).encode())
        else:
            socket.send_fds(control, [b"{}"], [pidfd])
            os.close(pidfd)
        for descriptor in descriptors:
            os.close(descriptor)


def main() -> None:
    """The main function: its argument is a socket, over which configuration and requests come."""
    control = socket.socket(fileno=int(sys.argv[1]))
    config = ForkServerConfig(**json.loads(control.recv(MESSAGE_BYTES)))
    gcs: _Gcs | None = None
    try:
        gcs = _Gcs(config) if config.host else None
        control.send(json.dumps({"gcs": gcs.address if gcs else ""}).encode())
        _serve_fork_requests(config, control, gcs)
    except (OSError, RuntimeError, ValueError) as error:
        control.send(json.dumps({"error": str(error)}).encode())
    finally:
        if gcs is not None:
            gcs.close()
        os._exit(0)  # Ray's own shutdown looks for parts that were never started
