"""Where tensors are in a flat buffer, in host memory or a device's."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch

from rollcall_protocol.wire.weight_manifest import TensorSpec
from rollcall_runtime.sync.errors import StagingError
from rollcall_runtime.sync.memory.buffers import WholeBuffer
from rollcall_runtime.sync.memory.device_buffers import DeviceBuffer

_ALIGNMENT = 64  # bytes: a cache line, and a multiple of every dtype's size


def lay_out(named: Sequence[tuple[str, torch.Tensor]]) -> tuple[tuple[TensorSpec, ...], int]:
    """Where each tensor goes in the flat buffer, and the buffer's length. Names are unique."""
    specs: list[TensorSpec] = []
    end = 0
    for name, tensor in named:
        nbytes = tensor.numel() * tensor.element_size()
        dtype = str(tensor.dtype).removeprefix("torch.")
        specs.append(TensorSpec(name, dtype, tuple(tensor.shape), end, nbytes))
        end += -(-nbytes // _ALIGNMENT) * _ALIGNMENT
    if len({spec.name for spec in specs}) != len(specs):
        raise ValueError("two tensors have the same name")
    return tuple(specs), end


def fill(buffer: WholeBuffer, placed: Iterable[tuple[TensorSpec, torch.Tensor]]) -> None:
    """Copy each tensor to its place."""
    if isinstance(buffer, DeviceBuffer):
        buffer.put((spec.offset, weight) for spec, weight in placed)
        return
    for spec, weight in placed:
        tensor_in(buffer, spec).copy_(weight)


def tensor_in(buffer: WholeBuffer, spec: TensorSpec) -> torch.Tensor:
    """The tensor, a view of the buffer or a copy; StagingError if this torch lacks its dtype."""
    return _view(*_part(buffer, spec))


def _part(buffer: WholeBuffer, spec: TensorSpec) -> tuple[torch.Tensor, TensorSpec]:
    """Memory that holds the tensor, and where it is in it."""
    if isinstance(buffer, DeviceBuffer):
        return buffer.tensor(spec.offset, spec.nbytes), replace(spec, offset=0)
    if buffer.nbytes == 0:
        return torch.empty(0, dtype=torch.uint8), spec
    return torch.frombuffer(buffer.memory, dtype=torch.uint8), spec


def _view(flat: torch.Tensor, spec: TensorSpec) -> torch.Tensor:
    dtype = getattr(torch, spec.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise StagingError(f"tensor {spec.name}: this torch has no dtype {spec.dtype!r}")
    part = flat[spec.offset : spec.offset + spec.nbytes]
    if spec.offset % dtype.itemsize:  # behind some of the buckets of a whole
        part = part.clone()
    return part.view(dtype).reshape(spec.shape)
