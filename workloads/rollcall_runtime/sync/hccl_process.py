"""A process that owns an HCCL communicator, so that one that hangs can be killed.

`Owner` is the side of the engine, `main` that of the process, which imports neither torch nor
torch_npu. They share host memory for the buckets (a memfd, since /dev/shm is small in containers),
and talk over a socket whose end is the end of the process: one JSON object a message, each call
answered in order.
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
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from rollcall_runtime.sync.acl_library import AclLibrary
from rollcall_runtime.sync.clibrary import LibraryError
from rollcall_runtime.sync.hccl_library import HcclLibrary

_POLL_SECONDS = 0.0002
_TICK_SECONDS = 0.002
_MESSAGE = 1 << 16


class ProcessError(RuntimeError):
    """The process reported an error, or ended."""


@dataclass(frozen=True, slots=True)
class Places:
    """What the process uses: libraries' paths, an NPU's index, and `slots` of `slot_bytes`."""

    hccl: str
    acl: str
    device: int
    slots: int
    slot_bytes: int


class Owner:
    """A process, one member's part in one communicator at a time. Used by one thread.

    `memory[slot]` is shared with it. `address` is the IP address at which peers reach this one.
    Methods raise ProcessError. A process that is not answering can only be killed.
    """

    def __init__(self, places: Places, *, address: str) -> None:
        self._places = places
        nbytes = places.slots * places.slot_bytes
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        shared = os.memfd_create("rollcall-hccl", os.MFD_CLOEXEC)
        try:
            os.ftruncate(shared, nbytes)
            self._mapping = mmap.mmap(shared, nbytes)
            environment = {
                **os.environ,
                "HCCL_IF_IP": address,
                "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            }
            self._process = subprocess.Popen(
                [
                    sys.executable, "-S", "-c", f"import {__name__} as m; m.main()",
                    json.dumps(asdict(places)), str(theirs.fileno()), str(shared),
                ],
                stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(), shared), env=environment,
            )  # fmt: skip
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
            os.close(shared)
        self._socket = ours
        self._socket.setblocking(True)
        self._asked = 1  # it will say that it has started
        whole = memoryview(self._mapping)
        size = places.slot_bytes
        self.memory = [whole[slot * size : (slot + 1) * size] for slot in range(places.slots)]

    @property
    def busy(self) -> bool:
        """Whether an answer is due."""
        return self._asked > 0

    def ask(self, call: str, **details: Any) -> None:
        """Begin a call."""
        self._asked += 1
        try:
            self._socket.send(json.dumps({"call": call, **details}).encode())
        except OSError as error:
            raise ProcessError(f"the HCCL process ended: {error}") from error

    def answer(self, rest: Callable[[], None]) -> dict[str, Any]:
        """The answer to the oldest call; `rest` is called between short waits and may raise."""
        self._socket.settimeout(_TICK_SECONDS)
        while True:
            try:
                message = self._socket.recv(_MESSAGE)
                break
            except TimeoutError:
                rest()
            except OSError as error:
                raise ProcessError(f"the HCCL process ended: {error}") from error
        if not message:
            raise ProcessError("the HCCL process ended")
        self._asked -= 1
        answer: dict[str, Any] = json.loads(message)
        if "error" in answer:
            raise ProcessError(answer["error"])
        return answer

    def kill(self) -> None:
        """End the process, whatever it does. What it had on the NPU ends with it."""
        self._process.kill()
        self._socket.close()
        self._process.wait()
        self.memory.clear()
        with contextlib.suppress(BufferError):  # a slot is in use: freed with its last user
            self._mapping.close()


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
        return {}

    def begin(self, slot: int, nbytes: int) -> None:
        """Copy at the sender, and put the broadcast into the stream.

        One stream, because HCCL wants the operations of a communicator in one order; the copy of
        one slot still runs beside the broadcast of another.
        """
        if self._rank == 0:
            self._acl.to_device(self._slots[slot], self._hosts[slot], nbytes)
        self._hccl.broadcast(self._communicator, self._slots[slot], nbytes, self._stream)
        self._acl.record(self._events[slot], self._stream)

    def ended(self, slot: int, nbytes: int) -> bool:
        """Whether the broadcast has ended; then copy at a receiver."""
        if not self._acl.happened(self._events[slot]):
            self._hccl.check(self._communicator)
            return False
        if self._rank != 0:
            self._acl.to_host(self._hosts[slot], self._slots[slot], nbytes)
        return True


def _listen(connection: socket.socket, calls: "queue.SimpleQueue[dict[str, Any]]") -> None:
    try:
        while message := connection.recv(_MESSAGE):
            calls.put(json.loads(message))
    finally:  # at the end, and when the connection is reset because answers were not read
        os._exit(0)  # the engine's process has ended, or does not want this one any more


def _serve(connection: socket.socket, process: _Process) -> None:
    """Broadcasts are begun as they are asked for, and answered when they have ended."""
    calls: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(connection, calls), daemon=True).start()
    flying: list[tuple[int, int]] = []

    def answer(body: dict[str, Any]) -> None:
        connection.send(json.dumps(body).encode())

    while True:
        try:
            call = calls.get(timeout=_POLL_SECONDS if flying else None)
        except queue.Empty:
            call = {}
        name = call.pop("call", "")
        if name == "broadcast":
            process.begin(call["slot"], call["nbytes"])
            flying.append((call["slot"], call["nbytes"]))
        elif name:
            answer(getattr(process, name)(**call))
        while flying and process.ended(*flying[0]):
            flying.pop(0)
            answer({})


def main() -> None:
    """The process's main function: places, socket and memory are its arguments."""
    places, descriptor, shared = sys.argv[1:4]
    connection = socket.socket(fileno=int(descriptor))
    try:
        process = _Process(Places(**json.loads(places)), int(shared))
        connection.send(b"{}")  # it has started
        _serve(connection, process)
    except (LibraryError, ImportError, ValueError, OSError) as error:
        with contextlib.suppress(OSError):  # nobody is there to be told
            connection.send(json.dumps({"error": f"{error}"}).encode())
