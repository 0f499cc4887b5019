"""Device memory through which buckets pass between host buffers and a collective.

A lane has a few slots, each with a stream of its own, so that one slot's copy runs beside another
slot's broadcast. A host buffer is touched only by copies that nobody else can delay: never while
the stream holds an operation that waits for a peer. So host memory is free as soon as the calling
thread is, whatever hangs on the device.
"""

import threading
import time
import weakref
from dataclasses import dataclass

from rollcall_runtime.sync.bindings.c_library import LibraryError
from rollcall_runtime.sync.bindings.cuda_library import CudaLibrary
from rollcall_runtime.sync.memory.buffers import Buffer

_NAP_SECONDS = 0.00005


@dataclass(frozen=True, slots=True)
class Slot:
    """Device memory for one operation, and its stream."""

    pointer: int
    stream: int


class Lane:
    """`slots` pieces of device memory of `slot_bytes` each, used in turn by one session."""

    def __init__(self, cuda: CudaLibrary, *, slots: int, slot_bytes: int) -> None:
        self._cuda = cuda
        self._slots: list[Slot] = []
        self._next = 0
        try:
            for _ in range(slots):
                self._slots.append(Slot(cuda.allocate(slot_bytes), cuda.stream()))
        except LibraryError:
            self.free()
            raise

    def take(self) -> Slot:
        """The slot whose turn it is."""
        slot = self._slots[self._next]
        self._next = (self._next + 1) % len(self._slots)
        return slot

    def copy_in(self, slot: Slot, host: int, nbytes: int) -> None:
        """From the host; returns when the host memory is free again."""
        self._cuda.to_device(slot.pointer, host, nbytes, slot.stream)
        self._finish(slot)

    def copy_out(self, slot: Slot, host: int, nbytes: int) -> None:
        """To the host."""
        self._cuda.to_host(host, slot.pointer, nbytes, slot.stream)
        self._finish(slot)

    def idle(self, slot: Slot) -> bool:
        """Whether the slot's operation has ended."""
        return self._cuda.idle(slot.stream)

    def wait(self) -> None:
        """Until all slots are idle."""
        for slot in self._slots:
            self._cuda.wait(slot.stream)

    def free(self) -> None:
        """Give all back."""
        while self._slots:
            slot = self._slots.pop()
            self._cuda.destroy_stream(slot.stream)
            self._cuda.free(slot.pointer)

    def _finish(self, slot: Slot) -> None:
        while not self._cuda.idle(slot.stream):
            time.sleep(_NAP_SECONDS)


class Device:
    """The device of this process, its lanes, and which host buffers are pinned for it.

    Lanes are kept for the next session, since giving device memory back stops the whole device.
    """

    def __init__(self, cuda: CudaLibrary, *, index: int, slots: int, slot_bytes: int) -> None:
        self._cuda = cuda
        self._index = index
        self._slots, self._slot_bytes = slots, slot_bytes
        self._lock = threading.Lock()
        self._free: list[Lane] = []
        self._pinned: weakref.WeakSet[object] = weakref.WeakSet()

    def use(self) -> None:
        """Call on each thread first."""
        self._cuda.use(self._index)

    def lane(self) -> Lane:
        """A lane that nobody uses."""
        with self._lock:
            if self._free:
                return self._free.pop()
        return Lane(self._cuda, slots=self._slots, slot_bytes=self._slot_bytes)

    def put_back(self, lane: Lane) -> None:
        """Give up a lane whose slots are idle."""
        with self._lock:
            self._free.append(lane)

    def pin(self, buffer: Buffer) -> None:
        """Pin the whole host buffer once, until it is freed. Raises LibraryError."""
        root = buffer.root
        with self._lock:
            if root in self._pinned or root.nbytes == 0:
                return
            self._pinned.add(root)
        self._cuda.register(root.address, root.nbytes)
        # From any thread, so without choosing its device: pinned memory belongs to none.
        weakref.finalize(root, self._cuda.unregister, root.address).atexit = False

    def close(self) -> None:
        """Free the lanes that nobody uses."""
        with self._lock:
            lanes, self._free = self._free, []
        # On a thread of its own: the caller's keeps the device that it has chosen.
        freeing = threading.Thread(target=self._give_back, args=(lanes,), name="free device memory")
        freeing.start()
        freeing.join()

    def _give_back(self, lanes: list[Lane]) -> None:
        self.use()
        for lane in lanes:
            lane.free()
