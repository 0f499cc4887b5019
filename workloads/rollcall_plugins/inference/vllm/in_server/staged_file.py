"""Weights that lie staged in memory that processes share, and a file of JSON that describes them.

The agent writes that file and vLLM's workers map all of them. Layout: 8 bytes, little-endian, the
length of the JSON; the JSON, `{"version": 7, "buffers": [[device, path or key], ...], "tensors":
[[name, dtype, [sizes], offset, buffer], ...]}`; zeros up to a multiple of ALIGNMENT; the tensors
that lie in no buffer. `buffer` numbers those of `buffers` from 1, and offsets are from the
beginning; 0 is this file, and offsets are from its first tensor. A buffer of `cpu` is a file, and
one of `cuda` has a key of `gpu_handles`.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from rollcall_runtime.sync.memory import gpu_handles

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from io import BufferedWriter

    from torch import Tensor

    from rollcall_runtime.sync.memory.exported_buffers import BufferPlace, ExportedBuffer

ALIGNMENT = 64  # bytes, of each tensor
LONGEST_HEADER = 64 << 20  # bytes; some 200 for a tensor
_LENGTH = struct.Struct("<Q")
_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64)
} | {"float8_e4m3fn": torch.float8_e4m3fn, "int32": torch.int32, "uint8": torch.uint8}


class StagedFileError(ValueError):
    """A file of staged weights that is damaged or describes what it does not hold."""


@dataclass(frozen=True, slots=True)
class StagedWeights:
    """What a file describes. The tensors are views of memory that ends with them: clone what is
    kept, and keep this until work on a device has read it.
    """

    version: int
    tensors: tuple[tuple[str, Tensor], ...]


def write(
    descriptor: int,
    weights: Iterable[tuple[str, Tensor]],
    *,
    version: int,
    place_of: Callable[[Tensor], BufferPlace | None] = lambda _: None,
) -> None:
    """Fill the new file `descriptor` with `weights`. It must not change once it was read.

    Tensors for which `place_of` names a buffer stay there. Others are written, not copied into a
    mapping: that takes a third of the time, without a page fault for each 4096 bytes, and without
    memory it is an OSError and no signal. StagedFileError for a dtype that the format does not
    know.
    """
    entries: list[list[Any]] = []
    buffers: list[ExportedBuffer] = []
    kept: list[Tensor] = []
    offset = 0
    for name, tensor in weights:
        dtype = str(tensor.dtype).removeprefix("torch.")
        if dtype not in _DTYPES:
            raise StagedFileError(f"{name} has the dtype {dtype}")
        place = place_of(tensor)
        if place is not None:
            if place.buffer not in buffers:
                buffers.append(place.buffer)
            number = buffers.index(place.buffer) + 1
            entries.append([name, dtype, list(tensor.shape), place.offset, number])
            continue
        entries.append([name, dtype, list(tensor.shape), offset, 0])
        kept.append(tensor)
        offset += _aligned(tensor.nbytes)
    exported = [[buffer.device, buffer.export()] for buffer in buffers]
    described = {"version": version, "buffers": exported, "tensors": entries}
    header = json.dumps(described).encode()
    with open(descriptor, "wb", closefd=False) as file:
        _write_aligned(file, _LENGTH.pack(len(header)) + header)
        for tensor in kept:
            flat = tensor.detach().cpu().reshape(-1)
            _write_aligned(file, flat.view(torch.uint8).numpy().data)
        file.write(b"\0")  # no file of tensors without numbers ends before they begin


def _write_aligned(file: BufferedWriter, content: bytes | memoryview) -> None:
    file.write(content)
    file.write(bytes(_aligned(len(content)) - len(content)))


def read(path: str, device: torch.device | None = None) -> StagedWeights:
    """Map the file at `path`, and the buffers that it names, for a process that runs on `device`.
    StagedFileError or GpuHandleError if they cannot be what `write` described.
    """
    own = _map(path)
    if len(own) < _LENGTH.size:
        raise StagedFileError(f"the file has {len(own)} bytes")
    (length,) = _LENGTH.unpack(own[: _LENGTH.size])
    if not 0 < length <= min(LONGEST_HEADER, len(own) - _LENGTH.size):
        raise StagedFileError(f"the description has {length} bytes of {len(own)}")
    try:
        header = json.loads(own[_LENGTH.size : _LENGTH.size + length])
        version, entries = int(header["version"]), list(header["tensors"])
        buffers = [(str(kind), str(key)) for kind, key in header["buffers"]]
    except (ValueError, KeyError, TypeError) as error:
        raise StagedFileError(f"the description is malformed: {error!r}") from error
    others = [_buffer(kind, key, device) for kind, key in buffers]
    places = [(own, _aligned(_LENGTH.size + length)), *((memory, 0) for memory in others)]
    return StagedWeights(version, tuple(_tensor(places, entry) for entry in entries))


def _buffer(kind: str, key: str, device: torch.device | None) -> mmap.mmap | Tensor:
    if kind == "cpu":
        return _map(key)
    if kind == "cuda" and device is not None:
        return gpu_handles.mapped(key, device)
    raise StagedFileError(f"weights in {kind} memory cannot be read on {device or 'cpu'}")


def _map(path: str) -> mmap.mmap:
    with open(path, "rb") as file:  # noqa: PTH123 - a path of /proc
        if not os.fstat(file.fileno()).st_size:
            raise StagedFileError("the file is empty")
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)


def _tensor(
    places: Sequence[tuple[mmap.mmap | Tensor, int]], entry: Sequence[Any]
) -> tuple[str, Tensor]:
    try:
        name, dtype, shape, offset, buffer = entry
        sizes = [int(number) for number in shape]
        memory, first = places[int(buffer)]
        element, at = _DTYPES[dtype], first + int(offset)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise StagedFileError(f"a tensor is described by {entry!r}") from error
    count = math.prod(sizes)
    fits = at + count * element.itemsize <= len(memory)
    if min([0, *sizes, int(offset), int(buffer)]) < 0 or not fits or at % element.itemsize:
        raise StagedFileError(f"{name!r} lies outside the file: {sizes} at {offset}")
    if not count:
        return str(name), torch.empty(sizes, dtype=element)
    if isinstance(memory, torch.Tensor):
        flat = memory[at : at + count * element.itemsize].view(element)
    else:
        flat = torch.frombuffer(memory, dtype=element, count=count, offset=at)
    return str(name), flat.view(sizes)


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
