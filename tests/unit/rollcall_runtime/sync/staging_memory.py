"""Which memory the members of a test stage weights in, as their environment says.

Memory of a double's device cannot be reached by the host: a process that reads or writes it without
one of the library's copies dies, and its test fails.
"""

import os

import torch

from rollcall_runtime.sync.bindings.acl_library import AclLibrary
from rollcall_runtime.sync.bindings.cuda_library import CudaLibrary
from rollcall_runtime.sync.memory.device_allocators import (
    AclDriver,
    CudaDriver,
    LibraryAllocator,
    TorchAllocator,
    device_allocator,
)
from rollcall_runtime.sync.memory.device_buffers import DeviceAllocator
from tests.doubles.build import FOLDER, NCCL

_STAGING = "ROLLCALL_TEST_STAGING"
DOUBLE_GPU = {_STAGING: "double cuda"}
DOUBLE_NPU = {_STAGING: "double npu"}
REAL_GPU = {_STAGING: "cuda"}
REAL_NPU = {_STAGING: "npu"}


def gpu_memory() -> LibraryAllocator:
    """Memory of the double's GPU."""
    return LibraryAllocator("cuda", CudaDriver(CudaLibrary(NCCL), 0))


def npu_memory() -> LibraryAllocator:
    """Memory of the double's NPU."""
    return LibraryAllocator("npu", AclDriver(AclLibrary(str(FOLDER / "libascendcl.so")), 0))


def staging_memory() -> DeviceAllocator | None:
    """For a member's process; None for host memory."""
    where = os.environ.get(_STAGING, "cpu")
    if where == "double cuda":
        return gpu_memory()
    if where == "double npu":
        return npu_memory()
    return device_allocator(where)


def torch_memory(device: str = "fake") -> DeviceAllocator:
    """Memory of torch's allocator, as of an accelerator although it is the host's."""
    memory = TorchAllocator(torch.device("cpu"))
    memory.device = device
    return memory
