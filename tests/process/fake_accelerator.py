"""Gives a worker process an accelerator whose memory is the host's: import it before the program.

Workers on a machine without an accelerator stage in host memory whatever the job asks for, so a job
with `staging: Device` would prove nothing about device memory there.
"""

import torch

from rollcall_runtime.sync.memory.device_allocators import TorchAllocator
from rollcall_runtime.sync.memory.device_buffers import DeviceAllocator
from rollcall_runtime.train import snapshot_placement

DEVICE = "fake"


def _allocator(device: str) -> DeviceAllocator:
    allocator = TorchAllocator(torch.device("cpu"))
    allocator.device = DEVICE
    return allocator


setattr(snapshot_placement, "device_allocator", _allocator)  # noqa: B010 - not an exported name
