"""Which memory the members of a test stage weights in, as their environment says.

Memory of a double's device is out of the host's reach: who reads or writes it without one of the
library's copies dies, and the test with it.
"""

import os

import torch

from rollcall_runtime.sync.bindings.acl_library import AclLibrary
from rollcall_runtime.sync.bindings.cuda_library import CudaLibrary
from rollcall_runtime.sync.memory.device_allocators import (
    AclDevice,
    CudaDevice,
    LibraryMemory,
    TorchMemory,
    device_memory,
)
from rollcall_runtime.sync.memory.device_buffers import DeviceMemory
from tests.doubles.build import FOLDER, NCCL

_STAGING = "ROLLCALL_TEST_STAGING"
DOUBLE_GPU = {_STAGING: "double cuda"}
DOUBLE_NPU = {_STAGING: "double npu"}
REAL_GPU = {_STAGING: "cuda"}
REAL_NPU = {_STAGING: "npu"}


def gpu_memory() -> LibraryMemory:
    """Memory of the double's GPU."""
    return LibraryMemory("cuda", CudaDevice(CudaLibrary(NCCL), 0))


def npu_memory() -> LibraryMemory:
    """Memory of the double's NPU."""
    return LibraryMemory("npu", AclDevice(AclLibrary(str(FOLDER / "libascendcl.so")), 0))


def staging_memory() -> DeviceMemory | None:
    """For a member's process; None for host memory."""
    where = os.environ.get(_STAGING, "cpu")
    if where == "double cuda":
        return gpu_memory()
    if where == "double npu":
        return npu_memory()
    return device_memory(where)


def torch_memory() -> DeviceMemory:
    """Memory of torch's allocator, as of an accelerator although it is the host's."""
    memory = TorchMemory(torch.device("cpu"))
    memory.device = "fake"
    return memory
