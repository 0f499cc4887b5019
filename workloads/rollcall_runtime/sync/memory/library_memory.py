"""Memory of an accelerator's library, called by ctypes: torch's allocator does not know of it.

Never run on a GPU or an NPU; tested against doubles of the libraries, whose memory the host cannot
reach.
"""

import threading
from typing import Protocol

import torch

from rollcall_runtime.sync.bindings.acl_library import AclLibrary
from rollcall_runtime.sync.bindings.clibrary import LibraryError, address_of
from rollcall_runtime.sync.bindings.cuda_library import CudaLibrary
from rollcall_runtime.sync.errors import ExhaustedError
from rollcall_runtime.sync.memory.device_buffers import Block, DeviceMemory, Placed, host_view

_PAGE = 2 << 20  # the largest page of an NPU: what is exported must be whole pages


class Copies(Protocol):
    """What is asked of a device's library. Copies have ended when they return; all methods raise
    LibraryError.
    """

    def use(self) -> None:
        """Make it the calling thread's device."""

    def allocate(self, nbytes: int) -> int: ...

    def free(self, pointer: int) -> None: ...

    def zero(self, pointer: int, nbytes: int) -> None: ...

    def to_device(self, pointer: int, host: int, nbytes: int) -> None: ...

    def to_host(self, host: int, pointer: int, nbytes: int) -> None: ...

    def within(self, to: int, pointer: int, nbytes: int) -> None: ...

    def export(self, pointer: int, nbytes: int) -> str: ...


class CudaDevice:
    """libcudart's, for processes whose torch has no CUDA."""

    def __init__(self, library: CudaLibrary, index: int) -> None:
        self._library, self._index = library, index
        self._lock = threading.Lock()  # one stream
        self.use()
        self._stream = library.stream()

    def use(self) -> None:
        """Make it the calling thread's device."""
        self._library.use(self._index)

    def allocate(self, nbytes: int) -> int:
        return self._library.allocate(nbytes)

    def free(self, pointer: int) -> None:
        self._library.free(pointer)

    def zero(self, pointer: int, nbytes: int) -> None:
        with self._lock:
            self._library.zero(pointer, nbytes, self._stream)
            self._library.wait(self._stream)

    def to_device(self, pointer: int, host: int, nbytes: int) -> None:
        with self._lock:
            self._library.to_device(pointer, host, nbytes, self._stream)
            self._library.wait(self._stream)

    def to_host(self, host: int, pointer: int, nbytes: int) -> None:
        with self._lock:
            self._library.to_host(host, pointer, nbytes, self._stream)
            self._library.wait(self._stream)

    def within(self, to: int, pointer: int, nbytes: int) -> None:
        with self._lock:
            self._library.within(to, pointer, nbytes, self._stream)
            self._library.wait(self._stream)

    def export(self, pointer: int, nbytes: int) -> str:
        raise NotImplementedError(f"{nbytes} bytes at {pointer:#x}: GPU memory is not exported")


class AclDevice:
    """AscendCL's, whose plain copies block."""

    def __init__(self, library: AclLibrary, index: int) -> None:
        self._library, self._index = library, index
        self.to_device, self.to_host = library.to_device, library.to_host
        self.within, self.free, self.zero = library.within, library.free, library.zero

    def use(self) -> None:
        """Make it the calling thread's device."""
        self._library.start(self._index)

    def allocate(self, nbytes: int) -> int:
        return self._library.allocate(-(-nbytes // _PAGE) * _PAGE)

    def export(self, pointer: int, nbytes: int) -> str:
        return self._library.export(pointer, -(-nbytes // _PAGE) * _PAGE)


class LibraryMemory(DeviceMemory):
    """Memory that torch's allocator does not know of."""

    def __init__(self, device: str, copies: Copies) -> None:
        self.device = device
        self.copies = copies

    def allocate(self, nbytes: int) -> "LibraryBlock":
        """Raises ExhaustedError."""
        self.copies.use()
        try:
            return LibraryBlock(self, max(nbytes, 1))
        except LibraryError as error:
            raise ExhaustedError(
                f"no memory for a buffer of {nbytes} bytes on the {self.device}: {error}"
            ) from error

    def in_torch(self) -> bool:
        """Whether torch can hold tensors on the device."""
        found = (
            torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        )
        return found is not None and found.type == self.device


class LibraryBlock(Block):
    """An allocation."""

    def __init__(self, memory: LibraryMemory, nbytes: int) -> None:
        self._memory, self._nbytes = memory, nbytes
        self.address = memory.copies.allocate(nbytes)
        memory.copies.zero(self.address, nbytes)

    def read(self, start: int, target: memoryview) -> None:
        """Fill host memory."""
        self._memory.copies.use()
        if len(target):
            self._memory.copies.to_host(address_of(target), self.address + start, len(target))

    def write(self, start: int, source: memoryview) -> None:
        """Overwrite."""
        self._memory.copies.use()
        if len(source):
            host = address_of(source)
            self._memory.copies.to_device(self.address + start, host, len(source))

    def put(self, placed: Placed) -> None:
        """Copy one tensor after the other; what torch has begun on the device comes first."""
        self._memory.copies.use()
        if self._memory.in_torch():
            torch.accelerator.synchronize()
        for start, tensor in placed:
            flat = tensor.contiguous()
            if not flat.nbytes:
                continue
            if flat.device.type == self._memory.device:
                torch.accelerator.synchronize()  # `contiguous` may have copied
                self._memory.copies.within(self.address + start, flat.data_ptr(), flat.nbytes)
            else:
                self._memory.copies.to_device(self.address + start, flat.data_ptr(), flat.nbytes)

    def tensor(self, start: int, nbytes: int) -> torch.Tensor:
        """A copy."""
        if not self._memory.in_torch():
            host = torch.empty(nbytes, dtype=torch.uint8)
            self.read(start, host_view(host))
            return host
        made = torch.empty(nbytes, dtype=torch.uint8, device=self._memory.device)
        torch.accelerator.synchronize()
        if nbytes:
            self._memory.copies.within(made.data_ptr(), self.address + start, nbytes)
        return made

    def export(self) -> str:
        """A key of the whole block."""
        self._memory.copies.use()
        return self._memory.copies.export(self.address, self._nbytes)

    def free(self) -> None:
        """Give it back, on a thread of its own: that may wait for the whole device."""
        threading.Thread(target=self._free, name="free device memory", daemon=True).start()

    def _free(self) -> None:
        self._memory.copies.use()
        self._memory.copies.free(self.address)
