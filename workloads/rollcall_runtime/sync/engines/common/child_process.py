"""A process that an engine owns, so that a library that hangs can be killed.

They share host memory for the pieces of buckets (a memfd, since /dev/shm is small in containers),
and talk over a socket whose end is the end of the process: one JSON object a message, each call
answered in order. Nothing here imports torch: such a process may have to do without.
"""

import contextlib
import json
import mmap
import os
import queue
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

MESSAGE = 1 << 16  # the longest, in bytes
_TICK_SECONDS = 0.002


class ProcessError(RuntimeError):
    """The process reported an error, or ended."""


class ProcessOwner(ABC):
    """The engine's side: a process with one member's part in one communicator at a time.

    Used by one thread. `memory[slot]` is shared with the process. Methods raise ProcessError. A
    process that is not answering can only be killed.
    """

    library: ClassVar[str]  # as people call it

    def __init__(self, *, slots: int, slot_bytes: int) -> None:
        nbytes = slots * slot_bytes
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        shared = os.memfd_create("rollcall-slots", os.MFD_CLOEXEC)
        try:
            os.ftruncate(shared, nbytes)
            self._mapping = mmap.mmap(shared, nbytes)
            self._start(theirs.fileno(), shared)
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
        self.memory = [whole[slot * slot_bytes : (slot + 1) * slot_bytes] for slot in range(slots)]

    @abstractmethod
    def _start(self, connection: int, shared: int) -> None:
        """Start the process, with copies of these two descriptors."""

    @abstractmethod
    def _end(self) -> None:
        """Kill the process and wait for its end."""

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
            raise self._ended(error) from error

    def answer(self, rest: Callable[[], None]) -> dict[str, Any]:
        """The answer to the oldest call; `rest` is called between short waits and may raise."""
        self._socket.settimeout(_TICK_SECONDS)
        while True:
            try:
                message = self._socket.recv(MESSAGE)
                break
            except TimeoutError:
                rest()
            except OSError as error:
                raise self._ended(error) from error
        if not message:
            raise self._ended()
        self._asked -= 1
        answer: dict[str, Any] = json.loads(message)
        if "error" in answer:
            raise ProcessError(answer["error"])
        return answer

    def kill(self) -> None:
        """End the process, whatever it does. What it had of a device ends with it."""
        self._socket.close()
        self._end()
        self.memory.clear()
        with contextlib.suppress(BufferError):  # a slot is in use: freed with its last user
            self._mapping.close()

    def _ended(self, error: OSError | None = None) -> ProcessError:
        return ProcessError(f"the {self.library} process ended{f': {error}' if error else ''}")


class Line:
    """The process's side of the socket. The process ends with its engine's side."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        # Not a SimpleQueue: when its `get` is woken without an item and the timeout has passed, it
        # waits for what is left of it, a negative time, which is for ever (CPython 3.11).
        self.calls: queue.Queue[dict[str, Any]] = queue.Queue()

    def listen(self) -> None:
        """Put what arrives into `calls`, for ever; for a thread."""
        try:
            while message := self._connection.recv(MESSAGE):
                self.calls.put(json.loads(message))
        finally:  # at the end, and when the connection is reset because answers were not read
            os._exit(0)  # the engine's process has ended, or does not want this one any more

    def answer(self, **body: Any) -> None:
        """Answer the oldest call that is not answered yet."""
        self._connection.send(json.dumps(body).encode())
