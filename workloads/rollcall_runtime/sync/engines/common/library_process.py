"""A child process that calls a library for an engine, so that a call that hangs can be killed.

Engine and child share host memory for the pieces of buckets (a memfd, since /dev/shm is small in
containers), and exchange messages over a socket whose end is the end of the child: one JSON object
each, every call answered in order. Nothing here imports torch: the child may have to run without.
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

MESSAGE_BYTES = 1 << 16  # the longest message
_POLL_SECONDS = 0.002


class LibraryProcessError(RuntimeError):
    """The child process reported an error, or exited."""


class LibraryProcess(ABC):
    """The engine's side: a child with one member's part in at most one communicator.

    Used by one thread. `memory[slot]` is shared with the child. Methods raise LibraryProcessError.
    A child that does not answer can only be killed.
    """

    library: ClassVar[str]  # its name, for messages

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
        self._unanswered = 1  # the child answers once unasked, when it has started
        whole = memoryview(self._mapping)
        self.memory = [whole[slot * slot_bytes : (slot + 1) * slot_bytes] for slot in range(slots)]

    @abstractmethod
    def _start(self, connection: int, shared: int) -> None:
        """Start the child, with copies of these two descriptors."""

    @abstractmethod
    def _kill(self) -> None:
        """Kill the child and wait until it has exited."""

    @property
    def busy(self) -> bool:
        """Whether an answer is outstanding."""
        return self._unanswered > 0

    def call(self, function: str, **arguments: Any) -> None:
        """Send a call without waiting for its answer. LibraryProcessError if the process exited."""
        self._unanswered += 1
        try:
            self._socket.send(json.dumps({"call": function, **arguments}).encode())
        except OSError as error:
            raise self._exited(error) from error

    def wait_for_answer(self, poll: Callable[[], None]) -> dict[str, Any]:
        """The answer to the oldest call; `poll` is called between short waits and may raise."""
        self._socket.settimeout(_POLL_SECONDS)
        while True:
            try:
                message = self._socket.recv(MESSAGE_BYTES)
                break
            except TimeoutError:
                poll()
            except OSError as error:
                raise self._exited(error) from error
        if not message:
            raise self._exited()
        self._unanswered -= 1
        answer: dict[str, Any] = json.loads(message)
        if "error" in answer:
            raise LibraryProcessError(answer["error"])
        return answer

    def kill(self) -> None:
        """End the child, whatever it does. What it held of a device is freed with it."""
        self._socket.close()
        self._kill()
        self.memory.clear()
        with contextlib.suppress(BufferError):  # a slot is in use: unmapped with its last user
            self._mapping.close()

    def _exited(self, error: OSError | None = None) -> LibraryProcessError:
        return LibraryProcessError(
            f"the {self.library} process exited{f': {error}' if error else ''}"
        )


class CallReceiver:
    """The child's side of the socket. The child exits when the engine's side is closed."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        # Not a SimpleQueue: when its `get` is woken without an item after the timeout has passed,
        # it waits for the remaining, negative time, which is for ever (CPython 3.11).
        self.calls: queue.Queue[dict[str, Any]] = queue.Queue()

    def listen(self) -> None:
        """Put what arrives into `calls`, for ever; for a thread."""
        try:
            while message := self._connection.recv(MESSAGE_BYTES):
                self.calls.put(json.loads(message))
        finally:  # closed, or reset because answers were not read
            os._exit(0)  # the engine's process has exited, or has given this child up

    def answer(self, **body: Any) -> None:
        """Answer the oldest call that is not answered yet."""
        self._connection.send(json.dumps(body).encode())
