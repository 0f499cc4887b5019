"""A double of what torch does to map a GPU's memory in another process, in one process, on the CPU.

Source: torch.multiprocessing.reductions of 2.13, `reduce_tensor` and `rebuild_cuda_tensor`: the
order of the values, an allocation in which the storage begins at an offset, and a counter for each
export, which one mapping brings back to zero.
"""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rollcall_runtime.sync.memory import gpu_handles

CARD = "GPU-7"
BEFORE = 512  # bytes of the allocation before the storage


class CudaIpc:
    """`unmapped` counts exports that no process has mapped."""

    def __init__(self) -> None:
        self.unmapped = 0
        self._exports: dict[bytes, torch.Tensor] = {}

    def reduce_tensor(self, tensor: torch.Tensor) -> tuple[Any, tuple[Any, ...]]:
        counter = bytes([255, len(self._exports)])
        self._exports[counter] = tensor
        self.unmapped += 1
        storage = tensor.untyped_storage()
        return None, (
            *(torch.Tensor, tensor.size(), tensor.stride(), tensor.storage_offset()),
            *(torch.storage.TypedStorage, tensor.dtype, 0),
            *(b"\x00memory", storage.nbytes(), BEFORE, False),
            *(counter, 3, b"event\xff", True),
        )

    def rebuild_cuda_tensor(self, *given: Any) -> torch.Tensor:
        (_, size, stride, offset, kind, dtype, device, memory, nbytes, at, _, *rest) = given
        counter, place, event, wait = rest
        exported = self._exports.pop(counter)  # a second mapping would find no counter
        self.unmapped -= 1
        assert (device, memory, at, place) == (0, b"\x00memory", BEFORE, 3)
        assert (event, wait, kind) == (b"event\xff", True, torch.storage.TypedStorage)
        assert nbytes == exported.untyped_storage().nbytes()
        found = torch.empty(0, dtype=dtype).set_(exported.untyped_storage())
        return found.as_strided(size, stride, offset)

    def properties(self, device: Any) -> Any:
        index = torch.device(device).index or 0
        return SimpleNamespace(uuid=CARD if index == 0 else f"GPU-{index}")


@pytest.fixture
def cuda_ipc(monkeypatch: pytest.MonkeyPatch) -> CudaIpc:
    """The double in the place of torch's functions."""
    double = CudaIpc()
    monkeypatch.setattr(gpu_handles, "reduce_tensor", double.reduce_tensor)
    monkeypatch.setattr(gpu_handles, "rebuild_cuda_tensor", double.rebuild_cuda_tensor)
    monkeypatch.setattr(torch.cuda, "get_device_properties", double.properties)
    return double
