"""A process that owns an HCCL communicator, so that one that hangs can be killed.

`Owner` is the side of the engine, `main` that of the process, which imports neither torch nor
torch_npu.
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

from rollcall_runtime.sync.bindings.acl_library import AclLibrary
from rollcall_runtime.sync.bindings.c_library import LibraryError
from rollcall_runtime.sync.bindings.hccl_library import HcclLibrary
from rollcall_runtime.sync.engines.common.child_process import Line, ProcessOwner

_POLL_SECONDS = 0.0002


@dataclass(frozen=True, slots=True)
class Places:
    """What the process uses: libraries' paths, an NPU's index, and `slots` of `slot_bytes`."""

    hccl: str
    acl: str
    device: int
    slots: int
    slot_bytes: int


class Owner(ProcessOwner):
    """A process that speaks to HCCL. `address` is that at which peers reach this one."""

    library = "HCCL"

    def __init__(self, places: Places, *, address: str) -> None:
        self._places, self._address = places, address
        super().__init__(slots=places.slots, slot_bytes=places.slot_bytes)

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
                json.dumps(asdict(self._places)),
                str(connection),
                str(shared),
            ],
            stdin=subprocess.DEVNULL,
            pass_fds=(connection, shared),
            env=environment,
        )

    def _end(self) -> None:
        self._process.kill()
        self._process.wait()


class _Process:
    """The calls, on the main thread of the process, which alone speaks to the libraries."""

    def __init__(self, places: Places, shared: int) -> None:
        self._acl, self._hccl = AclLibrary(places.acl), HcclLibrary(places.hccl)
        self._acl.start(places.device)
        self._memory = mmap.mmap(shared, places.slots * places.slot_bytes)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._hosts = [start + slot * places.slot_bytes for slot in range(places.slots)]
        self._slots = [self._acl.allocate(places.slot_bytes) for _ in range(places.slots)]
        self._events = [self._acl.event() for _ in range(places.slots)]
        self._stream = self._acl.stream()
        self._communicator = 0
        self._rank = 0
        self._imported: dict[str, int] = {}  # addresses, by the keys of the engine's process

    def root(self) -> dict[str, Any]:
        """Mint the root info."""
        return {"root": b64encode(self._hccl.root_info()).decode()}

    def join(self, root: str, size: int, rank: int) -> dict[str, Any]:
        """Make a communicator; waits for all ranks."""
        self._rank = rank
        self._communicator = self._hccl.init(b64decode(root), size=size, rank=rank)
        return {}

    def leave(self) -> dict[str, Any]:
        """Free it."""
        if self._communicator:
            self._hccl.destroy(self._communicator)
            self._communicator = 0
        for key in tuple(self._imported):
            self.detach(key)
        return {}

    def attach(self, key: str) -> dict[str, Any]:
        """Reach device memory of the engine's process."""
        self._imported[key] = self._acl.import_(key)
        return {}

    def detach(self, key: str) -> dict[str, Any]:
        """Let it go; nothing is in flight."""
        del self._imported[key]
        self._acl.close(key)
        return {}

    def begin(self, slot: int, nbytes: int, key: str = "", offset: int = 0) -> None:
        """Put a broadcast into the stream, of the slot (first copied, at the sender) or of memory
        that was attached.

        One stream, because HCCL wants the operations of a communicator in one order; the copy of
        one slot still runs beside the broadcast of another.
        """
        pointer = self._imported[key] + offset if key else self._slots[slot]
        if self._rank == 0 and not key:
            self._acl.to_device(pointer, self._hosts[slot], nbytes)
        self._hccl.broadcast(self._communicator, pointer, nbytes, self._stream)
        self._acl.record(self._events[slot], self._stream)

    def ended(self, slot: int, nbytes: int, key: str = "", offset: int = 0) -> bool:  # noqa: ARG002
        """Whether the broadcast has ended; then copy at a receiver, unless it is there."""
        if not self._acl.happened(self._events[slot]):
            self._hccl.check(self._communicator)
            return False
        if self._rank != 0 and not key:
            self._acl.to_host(self._hosts[slot], self._slots[slot], nbytes)
        return True


def _serve(line: Line, process: _Process) -> None:
    """Broadcasts are begun as they are asked for, and answered when they have ended."""
    threading.Thread(target=line.listen, daemon=True).start()
    flying: list[dict[str, Any]] = []
    while True:
        try:
            call = line.calls.get(timeout=_POLL_SECONDS if flying else None)
        except queue.Empty:
            call = {}
        name = call.pop("call", "")
        if name == "broadcast":
            process.begin(**call)
            flying.append(call)
        elif name:
            line.answer(**getattr(process, name)(**call))
        while flying and process.ended(**flying[0]):
            flying.pop(0)
            line.answer()


def main() -> None:
    """The process's main function: places, socket and memory are its arguments."""
    places, descriptor, shared = sys.argv[1:4]
    line = Line(socket.socket(fileno=int(descriptor)))
    try:
        process = _Process(Places(**json.loads(places)), int(shared))
        line.answer()  # it has started
        _serve(line, process)
    except (LibraryError, ImportError, ValueError, OSError) as error:
        with contextlib.suppress(OSError):  # nobody is there to be told
            line.answer(error=str(error))
