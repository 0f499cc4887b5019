"""A child process that holds an HCCL communicator, so that one that hangs can be killed.

`HcclProcess` is the engine's side, `main` the child's, which imports neither torch nor torch_npu.
"""

import contextlib
import ctypes
import json
import mmap
import os
import queue
import socket
import subprocess
import sys
import threading
from base64 import b64decode, b64encode
from dataclasses import asdict, dataclass
from typing import Any

from rollcall_plugins.transports.hccl.hccl_library import HcclLibrary
from rollcall_runtime.sync.bindings.acl_library import AclLibrary
from rollcall_runtime.sync.bindings.c_library import LibraryError
from rollcall_runtime.sync.engines.common.library_process import CallReceiver, LibraryProcess

_POLL_SECONDS = 0.0002


@dataclass(frozen=True, slots=True)
class HcclProcessConfig:
    """What the child uses: libraries' paths, an NPU's index, and `slots` of `slot_bytes`."""

    hccl: str
    acl: str
    device: int
    slots: int
    slot_bytes: int


class HcclProcess(LibraryProcess):
    """A child that calls HCCL. `address` is the one at which peers reach it."""

    library = "HCCL"

    def __init__(self, config: HcclProcessConfig, *, address: str) -> None:
        self._config, self._address = config, address
        super().__init__(slots=config.slots, slot_bytes=config.slot_bytes)

    def _start(self, connection: int, shared: int) -> None:
        environment = {
            **os.environ,
            "HCCL_IF_IP": self._address,
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        }
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-S",
                "-c",
                f"import {__name__} as m; m.main()",
                json.dumps(asdict(self._config)),
                str(connection),
                str(shared),
            ],
            stdin=subprocess.DEVNULL,
            pass_fds=(connection, shared),
            env=environment,
        )

    def _kill(self) -> None:
        self._process.kill()
        self._process.wait()


class _HcclCalls:
    """The calls, on the main thread of the child, which alone calls the libraries."""

    def __init__(self, config: HcclProcessConfig, shared: int) -> None:
        self._acl, self._hccl = AclLibrary(config.acl), HcclLibrary(config.hccl)
        self._acl.start(config.device)
        self._memory = mmap.mmap(shared, config.slots * config.slot_bytes)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._hosts = [start + slot * config.slot_bytes for slot in range(config.slots)]
        self._slots = [self._acl.allocate(config.slot_bytes) for _ in range(config.slots)]
        self._events = [self._acl.event() for _ in range(config.slots)]
        self._stream = self._acl.stream()
        self._communicator = 0
        self._rank = 0
        self._imported: dict[str, int] = {}  # addresses, by the keys of the engine's process

    def root(self) -> dict[str, Any]:
        """Create the root info."""
        return {"root": b64encode(self._hccl.root_info()).decode()}

    def join(self, root: str, size: int, rank: int) -> dict[str, Any]:
        """Make a communicator; waits for all ranks."""
        self._rank = rank
        self._communicator = self._hccl.init(b64decode(root), size=size, rank=rank)
        return {}

    def leave(self) -> dict[str, Any]:
        """Free the communicator."""
        if self._communicator:
            self._hccl.destroy(self._communicator)
            self._communicator = 0
        for key in tuple(self._imported):
            self.detach(key)
        return {}

    def attach(self, key: str) -> dict[str, Any]:
        """Import device memory of the engine's process."""
        self._imported[key] = self._acl.import_(key)
        return {}

    def detach(self, key: str) -> dict[str, Any]:
        """End an import; nothing is in flight."""
        del self._imported[key]
        self._acl.close(key)
        return {}

    def begin(self, slot: int, nbytes: int, key: str = "", offset: int = 0) -> None:
        """Enqueue a broadcast of the slot (first copied, at the sender) or of attached memory.

        One stream, because HCCL wants the operations of a communicator in one order; the copy of
        one slot still runs beside the broadcast of another.
        """
        pointer = self._imported[key] + offset if key else self._slots[slot]
        if self._rank == 0 and not key:
            self._acl.to_device(pointer, self._hosts[slot], nbytes)
        self._hccl.broadcast(self._communicator, pointer, nbytes, self._stream)
        self._acl.record(self._events[slot], self._stream)

    def ended(self, slot: int, nbytes: int, key: str = "", offset: int = 0) -> bool:  # noqa: ARG002
        """Whether the broadcast has ended; then a receiver copies the slot to host memory."""
        if not self._acl.completed(self._events[slot]):
            self._hccl.check(self._communicator)
            return False
        if self._rank != 0 and not key:
            self._acl.to_host(self._hosts[slot], self._slots[slot], nbytes)
        return True


def _serve(receiver: CallReceiver, hccl: _HcclCalls) -> None:
    """Begin broadcasts as they are called, and answer them when they have ended."""
    threading.Thread(target=receiver.listen, daemon=True).start()
    in_flight: list[dict[str, Any]] = []
    while True:
        try:
            call = receiver.calls.get(timeout=_POLL_SECONDS if in_flight else None)
        except queue.Empty:
            call = {}
        name = call.pop("call", "")
        if name == "broadcast":
            hccl.begin(**call)
            in_flight.append(call)
        elif name:
            receiver.answer(**getattr(hccl, name)(**call))
        while in_flight and hccl.ended(**in_flight[0]):
            in_flight.pop(0)
            receiver.answer()


def main() -> None:
    """The child's main function: configuration, socket and memory are its arguments."""
    config, descriptor, shared = sys.argv[1:4]
    receiver = CallReceiver(socket.socket(fileno=int(descriptor)))
    try:
        hccl = _HcclCalls(HcclProcessConfig(**json.loads(config)), int(shared))
        receiver.answer()  # it has started
        _serve(receiver, hccl)
    except (LibraryError, ImportError, ValueError, OSError) as error:
        with contextlib.suppress(OSError):  # the engine's process has exited
            receiver.answer(error=str(error))
