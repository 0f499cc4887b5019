"""A flat buffer in device memory, with the interface of one in host memory.

A `DeviceAllocator` allocates the memory, and its allocations copy bytes in and out.
"""

import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterable
from functools import partial
from typing import Any

import torch

from rollcall_runtime.sync.memory import exported_buffers
from rollcall_runtime.sync.memory.buffers import BufferFactory, FlatBuffer

PlacedTensors = Iterable[tuple[int, torch.Tensor]]  # tensors and where they begin, in bytes


class DeviceAllocation(ABC):
    """`nbytes` of device memory at `address`."""

    address: int

    @abstractmethod
    def read(self, start: int, target: memoryview) -> None:
        """Fill host memory with the bytes from `start` on."""

    @abstractmethod
    def write(self, start: int, source: memoryview) -> None:
        """Overwrite the bytes from `start` on with host memory."""

    @abstractmethod
    def put(self, placed: PlacedTensors) -> None:
        """Copy tensors (of this device or the host, any strides) to their offsets in bytes."""

    @abstractmethod
    def tensor(self, start: int, nbytes: int) -> torch.Tensor:
        """Bytes from `start` on as uint8: a view or a copy on the device where torch has it, else
        a copy on the CPU.
        """

    @abstractmethod
    def free(self) -> None:
        """Free the memory; from any thread, once."""

    def export(self) -> str:
        """A key by which another process of this host maps the memory. Raises LibraryError."""
        raise NotImplementedError(f"{type(self).__name__} cannot be shared with another process")


class DeviceAllocator(ABC):
    """Allocates an accelerator's memory. `device` is its torch device type."""

    device: str

    @abstractmethod
    def allocate(self, nbytes: int) -> DeviceAllocation:
        """Zeroed memory. Raises ExhaustedError."""

    def scratch(self, nbytes: int) -> memoryview:
        """Page-locked host memory, which is copied to and from at full speed."""
        pinned = torch.empty(nbytes, dtype=torch.uint8, pin_memory=torch.accelerator.is_available())
        return host_view(pinned)


class DeviceBuffer(FlatBuffer):
    """`nbytes` of device memory, zero at first. Raises ExhaustedError.

    `address` is an address of the device: host code must not dereference it.
    """

    def __init__(
        self, allocator: DeviceAllocator, nbytes: int, *, changed: threading.Condition | None = None
    ) -> None:
        super().__init__(changed)
        self._allocator = allocator
        self._allocation = allocator.allocate(nbytes)
        # Freed with the buffer.
        weakref.finalize(self, self._allocation.free).atexit = False
        self.nbytes, self.address, self.device = nbytes, self._allocation.address, allocator.device
        exported_buffers.add(self)

    @property
    def memory(self) -> memoryview:
        """Raises TypeError: host code cannot view device memory."""
        raise TypeError(f"these weights are in {self.device} memory: use read() to copy them")

    def read(self, start: int, end: int, scratch: memoryview | None = None) -> memoryview:
        """A copy of bytes [start, end), at the beginning of `scratch` if that is given."""
        self._check(start, end)
        nbytes = end - start
        target = memoryview(bytearray(nbytes)) if scratch is None else scratch[:nbytes]
        self._allocation.read(start, target)
        return target

    def write(self, start: int, data: memoryview) -> None:
        """Overwrite the bytes from `start` on."""
        self._check(start, start + len(data))
        self._allocation.write(start, data)

    def scratch(self, nbytes: int) -> memoryview:
        """Page-locked host memory for `read` to copy into."""
        return self._allocator.scratch(nbytes)

    def put(self, placed: PlacedTensors) -> None:
        """Copy tensors (of the device or the host) to their offsets in bytes."""
        self._allocation.put(placed)

    def tensor(self, start: int, nbytes: int) -> torch.Tensor:
        """Bytes from `start` on as uint8, on the device where torch has it."""
        self._check(start, start + nbytes)
        return self._allocation.tensor(start, nbytes)

    def export(self) -> str:
        """A key by which another process of this host maps the memory. Raises LibraryError."""
        return self._allocation.export()

    def _check(self, start: int, end: int) -> None:
        if not 0 <= start <= end <= self.nbytes:
            raise ValueError(
                f"bytes [{start}, {end}) are outside of a buffer of {self.nbytes} bytes"
            )


def device_buffer_factory(allocator: DeviceAllocator) -> BufferFactory:
    """The factory for a pool of buffers in the device's memory."""
    return partial(_new_device_buffer, allocator)


def _new_device_buffer(
    allocator: DeviceAllocator, nbytes: int, changed: threading.Condition
) -> FlatBuffer:
    return DeviceBuffer(allocator, nbytes, changed=changed)


def host_view(tensor: torch.Tensor) -> memoryview:
    """The bytes of a flat uint8 tensor on the CPU."""
    array: Any = tensor.numpy()
    return memoryview(array)
