"""Device memory through which buckets pass between host buffers and a collective.

A session uses a ring of slots, each with a stream of its own, so that the copy of one slot runs
beside the broadcast of another. A host buffer is accessed only by copies that no peer can delay:
never while the stream holds an operation that waits for a peer. So host memory is free as soon as
the calling thread is, whatever hangs on the device.
"""

import threading
import time
import weakref
from dataclasses import dataclass

from rollcall_runtime.sync.bindings.c_library import LibraryError
from rollcall_runtime.sync.bindings.cuda_library import CudaLibrary
from rollcall_runtime.sync.memory.buffers import Buffer

_POLL_SECONDS = 0.00005


@dataclass(frozen=True, slots=True)
class DeviceSlot:
    """Device memory for one operation, and its stream."""

    pointer: int
    stream: int


class SlotRing:
    """`slots` pieces of device memory of `slot_bytes` each, used in turn by one session."""

    def __init__(self, cuda: CudaLibrary, *, slots: int, slot_bytes: int) -> None:
        self._cuda = cuda
        self._slots: list[DeviceSlot] = []
        self._next = 0
        try:
            for _ in range(slots):
                self._slots.append(DeviceSlot(cuda.allocate(slot_bytes), cuda.stream()))
        except LibraryError:
            self.free()
            raise

    def next_slot(self) -> DeviceSlot:
        """The slot to use next."""
        slot = self._slots[self._next]
        self._next = (self._next + 1) % len(self._slots)
        return slot

    def copy_in(self, slot: DeviceSlot, host: int, nbytes: int) -> None:
        """Copy from host memory; returns when the host memory is free again."""
        self._cuda.to_device(slot.pointer, host, nbytes, slot.stream)
        self._wait_for_copy(slot)

    def copy_out(self, slot: DeviceSlot, host: int, nbytes: int) -> None:
        """Copy to host memory; returns when the bytes are there."""
        self._cuda.to_host(host, slot.pointer, nbytes, slot.stream)
        self._wait_for_copy(slot)

    def idle(self, slot: DeviceSlot) -> bool:
        """Whether the slot's operation has ended."""
        return self._cuda.idle(slot.stream)

    def wait(self) -> None:
        """Wait until all slots are idle."""
        for slot in self._slots:
            self._cuda.wait(slot.stream)

    def free(self) -> None:
        """Free the device memory of all slots and destroy their streams."""
        while self._slots:
            slot = self._slots.pop()
            self._cuda.destroy_stream(slot.stream)
            self._cuda.free(slot.pointer)

    def _wait_for_copy(self, slot: DeviceSlot) -> None:
        while not self._cuda.idle(slot.stream):
            time.sleep(_POLL_SECONDS)


class CudaDeviceSlots:
    """The slot rings of this process's GPU, and the host buffers that are page-locked for it.

    Rings are kept for the next session, since freeing device memory stops the whole device.
    """

    def __init__(self, cuda: CudaLibrary, *, index: int, slots: int, slot_bytes: int) -> None:
        self._cuda = cuda
        self._index = index
        self._slots, self._slot_bytes = slots, slot_bytes
        self._lock = threading.Lock()
        self._free: list[SlotRing] = []
        self._page_locked: weakref.WeakSet[object] = weakref.WeakSet()

    def use_device(self) -> None:
        """Make the GPU the calling thread's device; every thread must call this first."""
        self._cuda.use(self._index)

    def take_ring(self) -> SlotRing:
        """A ring that no session uses."""
        with self._lock:
            if self._free:
                return self._free.pop()
        return SlotRing(self._cuda, slots=self._slots, slot_bytes=self._slot_bytes)

    def return_ring(self, ring: SlotRing) -> None:
        """Give back a ring whose slots are idle."""
        with self._lock:
            self._free.append(ring)

    def page_lock(self, buffer: Buffer) -> None:
        """Page-lock the whole host buffer once, until it is freed. Raises LibraryError."""
        root = buffer.root
        with self._lock:
            if root in self._page_locked or root.nbytes == 0:
                return
            self._page_locked.add(root)
        self._cuda.register(root.address, root.nbytes)
        # From any thread, without choosing its device: page-locked memory belongs to no device.
        weakref.finalize(root, self._cuda.unregister, root.address).atexit = False

    def close(self) -> None:
        """Free the rings that no session uses."""
        with self._lock:
            rings, self._free = self._free, []
        # On a thread of its own: the caller's thread keeps the device that it has chosen.
        freeing = threading.Thread(target=self._free_rings, args=(rings,), name="free device slots")
        freeing.start()
        freeing.join()

    def _free_rings(self, rings: list[SlotRing]) -> None:
        self.use_device()
        for ring in rings:
            ring.free()
