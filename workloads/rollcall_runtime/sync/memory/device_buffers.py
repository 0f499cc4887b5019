"""A flat buffer in device memory, with the interface of one in host memory.

Where the memory comes from, and how bytes get in and out, is a `DeviceAllocator`'s business.
"""

import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterable
from functools import partial
from typing import Any

import torch

from rollcall_runtime.sync.memory.buffers import FlatBuffer, Make

Placed = Iterable[tuple[int, torch.Tensor]]  # tensors and where they begin, in bytes


class Block(ABC):
    """`nbytes` of device memory at `address`."""

    address: int

    @abstractmethod
    def read(self, start: int, target: memoryview) -> None:
        """Fill host memory with the bytes from `start` on."""

    @abstractmethod
    def write(self, start: int, source: memoryview) -> None:
        """Overwrite the bytes from `start` on with host memory."""

    @abstractmethod
    def put(self, placed: Placed) -> None:
        """Copy tensors (of this device or the host, any strides) to their places."""

    @abstractmethod
    def tensor(self, start: int, nbytes: int) -> torch.Tensor:
        """Bytes from `start` on as uint8: a view or a copy on the device where torch has it, else
        a copy on the CPU.
        """

    @abstractmethod
    def free(self) -> None:
        """Give it back; from any thread, once."""

    def export(self) -> str:
        """A key by which another process of this host imports the memory. Raises LibraryError."""
        raise NotImplementedError(f"{type(self).__name__} stays in its process")


class DeviceAllocator(ABC):
    """An accelerator's memory. `device` is its torch device type."""

    device: str

    @abstractmethod
    def allocate(self, nbytes: int) -> Block:
        """Memory that is zero. Raises ExhaustedError."""

    def scratch(self, nbytes: int) -> memoryview:
        """Host memory that is copied to and from at full speed."""
        pinned = torch.empty(nbytes, dtype=torch.uint8, pin_memory=torch.accelerator.is_available())
        return host_view(pinned)


class DeviceBuffer(FlatBuffer):
    """`nbytes` of device memory, zero at first. Raises ExhaustedError.

    `address` is the device's: nothing on the host may follow it.
    """

    def __init__(
        self, memory: DeviceAllocator, nbytes: int, *, changed: threading.Condition | None = None
    ) -> None:
        super().__init__(changed)
        self._memory = memory
        self._block = memory.allocate(nbytes)
        # Freed with its last user.
        weakref.finalize(self, self._block.free).atexit = False
        self.nbytes, self.address, self.device = nbytes, self._block.address, memory.device
        self._key = ""

    @property
    def memory(self) -> memoryview:
        """TypeError: there is no view of it."""
        raise TypeError(f"these weights are in memory of the {self.device}: read a copy")

    def read(self, start: int, end: int, scratch: memoryview | None = None) -> memoryview:
        """A copy of bytes [start, end), at the beginning of `scratch` if that is given."""
        self._check(start, end)
        nbytes = end - start
        target = memoryview(bytearray(nbytes)) if scratch is None else scratch[:nbytes]
        self._block.read(start, target)
        return target

    def write(self, start: int, data: memoryview) -> None:
        """Overwrite the bytes from `start` on."""
        self._check(start, start + len(data))
        self._block.write(start, data)

    def scratch(self, nbytes: int) -> memoryview:
        """Host memory that is copied to at full speed."""
        return self._memory.scratch(nbytes)

    def put(self, placed: Placed) -> None:
        """Copy tensors (of the device or the host) to their places; all that a snapshot is."""
        self._block.put(placed)

    def tensor(self, start: int, nbytes: int) -> torch.Tensor:
        """Bytes from `start` on as uint8, on the device where torch has it."""
        self._check(start, start + nbytes)
        return self._block.tensor(start, nbytes)

    def export(self) -> str:
        """A key by which another process of this host reaches the memory. Raises LibraryError."""
        if not self._key:
            self._key = self._block.export()
        return self._key

    def _check(self, start: int, end: int) -> None:
        if not 0 <= start <= end <= self.nbytes:
            raise ValueError(f"bytes [{start}, {end}) of a buffer of {self.nbytes}")


def maker(memory: DeviceAllocator) -> Make:
    """What a pool of such buffers makes them by."""
    return partial(_make, memory)


def _make(memory: DeviceAllocator, nbytes: int, changed: threading.Condition) -> FlatBuffer:
    return DeviceBuffer(memory, nbytes, changed=changed)


def host_view(tensor: torch.Tensor) -> memoryview:
    """The bytes of a flat uint8 tensor on the CPU."""
    array: Any = tensor.numpy()
    return memoryview(array)
