"""A key of GPU memory leads to the same bytes, on the same card, and is checked before it is used.

Against a double (tests/doubles/cuda_ipc.py): only a GPU shows that its driver maps them.
"""

import inspect
import json
from typing import Any

import pytest
import torch
from torch.multiprocessing import reductions

from rollcall_runtime.sync.memory import gpu_handles
from rollcall_runtime.sync.memory.device_buffers import DeviceBuffer
from tests.doubles.cuda_ipc import CudaIpc, cuda_ipc
from tests.unit.rollcall_runtime.sync.staging_memory import torch_memory

__all__ = ["cuda_ipc"]
CARD = torch.device("cuda", 0)


def test_the_bytes_are_those_of_the_buffer(cuda_ipc: CudaIpc) -> None:
    buffer = DeviceBuffer(torch_memory("cuda"), 100)
    buffer.write(10, memoryview(bytearray(b"weights")))
    found = gpu_handles.mapped(buffer.export(), CARD)
    assert (found.dtype, found.shape) == (torch.uint8, (100,))
    assert bytes(found[10:17].tolist()) == b"weights"
    buffer.write(10, memoryview(bytearray(b"W")))
    assert found[10] == ord("W"), "it is the same memory"
    assert not cuda_ipc.unmapped


def test_each_process_that_maps_it_has_a_key_of_its_own(cuda_ipc: CudaIpc) -> None:
    buffer = DeviceBuffer(torch_memory("cuda"), 100)
    keys = {buffer.export(), buffer.export()}
    assert len(keys) == 2
    for key in keys:
        gpu_handles.mapped(key, CARD)
    assert not cuda_ipc.unmapped


def test_memory_of_another_card_is_refused(cuda_ipc: CudaIpc) -> None:
    key = gpu_handles.export(torch.zeros(8, dtype=torch.uint8))
    with pytest.raises(gpu_handles.GpuHandleError, match="on the card GPU-7, and not on cuda:1"):
        gpu_handles.mapped(key, torch.device("cuda", 1))
    assert cuda_ipc.unmapped == 1


@pytest.mark.parametrize(
    "change",
    [{"memory": "no hex"}, {"offset": -1}, {"storage": 1.5}, {"counter_at": True}, {"event": None}],
)
@pytest.mark.usefixtures("cuda_ipc")
def test_a_malformed_key_is_refused(change: dict[str, Any]) -> None:
    key = json.loads(gpu_handles.export(torch.zeros(8, dtype=torch.uint8))) | change
    for text in (json.dumps(key), "[]", "no JSON", json.dumps({"card": "GPU-7"})):
        with pytest.raises(gpu_handles.GpuHandleError, match="malformed"):
            gpu_handles.mapped(text, CARD)


@pytest.mark.usefixtures("cuda_ipc")
def test_bytes_beyond_the_memory_are_refused() -> None:
    key = json.loads(gpu_handles.export(torch.zeros(8, dtype=torch.uint8))) | {"nbytes": 9}
    with pytest.raises(
        gpu_handles.GpuHandleError, match="9 bytes from 0 on are not in memory of 8"
    ):
        gpu_handles.mapped(json.dumps(key), CARD)


def test_torchs_function_takes_what_it_is_given() -> None:
    # 15 values in this order; a torch that changes it fails here, and not on a GPU.
    assert list(inspect.signature(reductions.rebuild_cuda_tensor).parameters) == [
        *("tensor_cls", "tensor_size", "tensor_stride", "tensor_offset", "storage_cls", "dtype"),
        *("storage_device", "storage_handle", "storage_size_bytes", "storage_offset_bytes"),
        *("requires_grad", "ref_counter_handle", "ref_counter_offset", "event_handle"),
        "event_sync_required",
    ]
