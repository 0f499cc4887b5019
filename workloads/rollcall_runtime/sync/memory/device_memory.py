"""Where device memory comes from: the one place that chooses.

GPUs' memory is torch's, so that its allocator knows of it. NPUs' is the library's own, because the
process that owns an HCCL communicator must import it.
"""

import os

import torch

from rollcall_runtime.sync.bindings.acl_library import AclLibrary
from rollcall_runtime.sync.bindings.hccl_library import locate
from rollcall_runtime.sync.memory.device_buffers import DeviceMemory
from rollcall_runtime.sync.memory.library_memory import AclDevice, LibraryMemory
from rollcall_runtime.sync.memory.torch_memory import TorchMemory


def device_memory(device: str) -> DeviceMemory | None:
    """The memory of this worker's device (a torch device type); None for "cpu".

    ImportError when its library is missing.
    """
    if device == "cpu":
        return None
    if device == "npu":
        return LibraryMemory(device, AclDevice(AclLibrary(locate("libascendcl.so")), _local_rank()))
    count = torch.get_device_module(device).device_count()
    return TorchMemory(torch.device(device, _local_rank() % max(count, 1)))


def _local_rank() -> int:
    return int(os.environ.get("LOCAL_RANK", "0"))
