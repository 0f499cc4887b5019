"""Where device memory comes from: torch's allocator, or an accelerator's library, called by ctypes.

GPUs' memory is torch's, so that its allocator knows of it. NPUs' is the library's own, because the
process that owns an HCCL communicator must import it; torch's allocator does not know of that.

Never run on an NPU; tested against doubles of the libraries, whose memory the host cannot reach.
"""

import os
import threading
from typing import Protocol

import torch

from rollcall_runtime.sync.bindings.acl_library import AclLibrary, locate
from rollcall_runtime.sync.bindings.c_library import LibraryError, address_of
from rollcall_runtime.sync.bindings.cuda_library import CudaLibrary
from rollcall_runtime.sync.errors import ExhaustedError
from rollcall_runtime.sync.memory import gpu_handles
from rollcall_runtime.sync.memory.device_buffers import (
    DeviceAllocation,
    DeviceAllocator,
    PlacedTensors,
    host_view,
)

_ALIGNED = 16  # bytes of the longest element
_PAGE = 2 << 20  # the largest page of an NPU: what is exported must be whole pages


def device_allocator(device: str) -> DeviceAllocator | None:
    """The memory of this worker's device (a torch device type); None for "cpu".

    ImportError when its library is missing.
    """
    if device == "cpu":
        return None
    if device == "npu":
        return LibraryAllocator(
            device, AclDriver(AclLibrary(locate("libascendcl.so")), _local_rank())
        )
    count = torch.get_device_module(device).device_count()
    return TorchAllocator(torch.device(device, _local_rank() % max(count, 1)))


def _local_rank() -> int:
    return int(os.environ.get("LOCAL_RANK", "0"))


class TorchAllocator(DeviceAllocator):
    """Memory of torch's allocator."""

    def __init__(self, device: torch.device) -> None:
        self.device = device.type
        self._device = device
        self._stream = torch.Stream(device) if device.type != "cpu" else None

    def allocate(self, nbytes: int) -> "TorchAllocation":
        """A buffer of `nbytes` zeros on the device. ExhaustedError if there is no room."""
        try:
            flat = torch.zeros(max(nbytes, 1), dtype=torch.uint8, device=self._device)
        except RuntimeError as error:
            raise ExhaustedError(
                f"cannot allocate a buffer of {nbytes} bytes in {self.device} memory: {error}"
            ) from error
        self.synchronize()  # the memory's previous user may have work on it in the stream
        return TorchAllocation(self, flat)

    def synchronize(self) -> None:
        """Wait for the work that this thread has enqueued on the device."""
        if self._stream is not None:
            torch.accelerator.current_stream(self._device).synchronize()

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copy in a stream of its own, beside other work on the device."""
        if self._stream is None:
            target.copy_(source)
            return
        with self._stream:
            target.copy_(source, non_blocking=True)
        self._stream.synchronize()


class TorchAllocation(DeviceAllocation):
    """A flat tensor of torch's allocator."""

    def __init__(self, allocator: TorchAllocator, flat: torch.Tensor) -> None:
        self._allocator, self._flat = allocator, flat
        self.address = flat.data_ptr()

    def read(self, start: int, target: memoryview) -> None:
        """Fill host memory with the bytes from `start` on."""
        if len(target):
            host = torch.frombuffer(target, dtype=torch.uint8)
            self._allocator.copy(host, self._flat[start : start + len(target)])

    def write(self, start: int, source: memoryview) -> None:
        """Overwrite the bytes from `start` on with host memory."""
        if len(source):
            host = torch.frombuffer(source, dtype=torch.uint8)
            self._allocator.copy(self._flat[start : start + len(source)], host)

    def put(self, placed: PlacedTensors) -> None:
        """Copy after the work that this thread has enqueued, such as an optimizer's step."""
        for start, tensor in placed:
            part = self._flat[start : start + tensor.nbytes]
            part.view(tensor.dtype).reshape(tensor.shape).copy_(tensor, non_blocking=True)
        self._allocator.synchronize()

    def tensor(self, start: int, nbytes: int) -> torch.Tensor:
        """A view, or a copy where a view of another dtype would not be aligned."""
        part = self._flat[start : start + nbytes]
        return part.clone() if start % _ALIGNED else part

    def export(self) -> str:
        """A key of the whole block; see `gpu_handles`."""
        if self._allocator.device != "cuda":
            return super().export()
        return gpu_handles.export(self._flat)

    def free(self) -> None:
        """Free the memory to torch's allocator."""
        del self._flat


class DeviceDriver(Protocol):
    """Memory functions of a device's library. Copies have ended when they return; all methods
    raise LibraryError.
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


class CudaDriver:
    """libcudart, for processes whose torch has no CUDA."""

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


class AclDriver:
    """AscendCL, whose plain copies block."""

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


class LibraryAllocator(DeviceAllocator):
    """Memory that torch's allocator does not know of."""

    def __init__(self, device: str, driver: DeviceDriver) -> None:
        self.device = device
        self.driver = driver

    def allocate(self, nbytes: int) -> "LibraryAllocation":
        """A buffer of `nbytes` on the device. ExhaustedError if there is no room."""
        self.driver.use()
        try:
            return LibraryAllocation(self, max(nbytes, 1))
        except LibraryError as error:
            raise ExhaustedError(
                f"cannot allocate a buffer of {nbytes} bytes in {self.device} memory: {error}"
            ) from error

    def in_torch(self) -> bool:
        """Whether torch can hold tensors on the device."""
        found = (
            torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        )
        return found is not None and found.type == self.device


class LibraryAllocation(DeviceAllocation):
    """An allocation by a device's library."""

    def __init__(self, allocator: LibraryAllocator, nbytes: int) -> None:
        self._allocator, self._nbytes = allocator, nbytes
        self.address = allocator.driver.allocate(nbytes)
        allocator.driver.zero(self.address, nbytes)
        self._key = ""

    def read(self, start: int, target: memoryview) -> None:
        """Fill host memory with the bytes from `start` on."""
        self._allocator.driver.use()
        if len(target):
            self._allocator.driver.to_host(address_of(target), self.address + start, len(target))

    def write(self, start: int, source: memoryview) -> None:
        """Overwrite the bytes from `start` on with host memory."""
        self._allocator.driver.use()
        if len(source):
            host = address_of(source)
            self._allocator.driver.to_device(self.address + start, host, len(source))

    def put(self, placed: PlacedTensors) -> None:
        """Copy one tensor after the other, after the work that torch has enqueued on the device."""
        self._allocator.driver.use()
        if self._allocator.in_torch():
            torch.accelerator.synchronize()
        for start, tensor in placed:
            flat = tensor.contiguous()
            if not flat.nbytes:
                continue
            if flat.device.type == self._allocator.device:
                torch.accelerator.synchronize()  # `contiguous` may have copied
                self._allocator.driver.within(self.address + start, flat.data_ptr(), flat.nbytes)
            else:
                self._allocator.driver.to_device(self.address + start, flat.data_ptr(), flat.nbytes)

    def tensor(self, start: int, nbytes: int) -> torch.Tensor:
        """A copy as uint8 [nbytes], on the device if torch has it, else on the CPU."""
        if not self._allocator.in_torch():
            host = torch.empty(nbytes, dtype=torch.uint8)
            self.read(start, host_view(host))
            return host
        made = torch.empty(nbytes, dtype=torch.uint8, device=self._allocator.device)
        torch.accelerator.synchronize()
        if nbytes:
            self._allocator.driver.within(made.data_ptr(), self.address + start, nbytes)
        return made

    def export(self) -> str:
        """A key of the whole block, always the same."""
        if not self._key:
            self._allocator.driver.use()
            self._key = self._allocator.driver.export(self.address, self._nbytes)
        return self._key

    def free(self) -> None:
        """Free the memory on a thread of its own, since that may wait for the whole device."""
        threading.Thread(target=self._free, name="free device memory", daemon=True).start()

    def _free(self) -> None:
        self._allocator.driver.use()
        self._allocator.driver.free(self.address)
