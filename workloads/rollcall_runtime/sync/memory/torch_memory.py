"""Memory of torch's allocator, which knows of it then.

Never run on a GPU; tested with the device "cpu".
"""

import torch

from rollcall_runtime.sync.errors import ExhaustedError
from rollcall_runtime.sync.memory.device_buffers import Block, DeviceMemory, Placed

_ALIGNED = 16  # bytes of the longest element


class TorchMemory(DeviceMemory):
    """Memory of torch's allocator."""

    def __init__(self, device: torch.device) -> None:
        self.device = device.type
        self._device = device
        self._stream = torch.Stream(device) if device.type != "cpu" else None

    def allocate(self, nbytes: int) -> "TorchBlock":
        """Raises ExhaustedError."""
        try:
            flat = torch.zeros(max(nbytes, 1), dtype=torch.uint8, device=self._device)
        except RuntimeError as error:
            raise ExhaustedError(
                f"no memory for a buffer of {nbytes} bytes on the {self.device}: {error}"
            ) from error
        self.settle()  # whoever had this memory before may still work with it
        return TorchBlock(self, flat)

    def settle(self) -> None:
        """Wait for what this thread has begun on the device."""
        if self._stream is not None:
            torch.accelerator.current_stream(self._device).synchronize()

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copy beside what else runs on the device."""
        if self._stream is None:
            target.copy_(source)
            return
        with self._stream:
            target.copy_(source, non_blocking=True)
        self._stream.synchronize()


class TorchBlock(Block):
    """A flat tensor."""

    def __init__(self, memory: TorchMemory, flat: torch.Tensor) -> None:
        self._memory, self._flat = memory, flat
        self.address = flat.data_ptr()

    def read(self, start: int, target: memoryview) -> None:
        """Fill host memory."""
        if len(target):
            host = torch.frombuffer(target, dtype=torch.uint8)
            self._memory.copy(host, self._flat[start : start + len(target)])

    def write(self, start: int, source: memoryview) -> None:
        """Overwrite."""
        if len(source):
            host = torch.frombuffer(source, dtype=torch.uint8)
            self._memory.copy(self._flat[start : start + len(source)], host)

    def put(self, placed: Placed) -> None:
        """Copy behind what this thread has begun, such as an optimizer's step."""
        for start, tensor in placed:
            part = self._flat[start : start + tensor.nbytes]
            part.view(tensor.dtype).reshape(tensor.shape).copy_(tensor, non_blocking=True)
        self._memory.settle()

    def tensor(self, start: int, nbytes: int) -> torch.Tensor:
        """A view, or a copy where a view of another dtype would not be aligned."""
        part = self._flat[start : start + nbytes]
        return part.clone() if start % _ALIGNED else part

    def free(self) -> None:
        """Give it back to torch's allocator."""
        del self._flat
