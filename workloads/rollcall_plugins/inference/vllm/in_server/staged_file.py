"""Weights that lie staged in a file of shared memory: JSON that describes them, then their bytes.

The agent writes the file and vLLM's workers map it. Layout: 8 bytes, little-endian, the length of
the JSON; the JSON, `{"version": 7, "tensors": [[name, dtype, [sizes], offset], ...]}`; zeros up to
a multiple of ALIGNMENT; the tensors, each at its offset from there.
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

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from io import BufferedWriter

    from torch import Tensor

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
    """What a file holds. The tensors are views of the mapped file: clone what is kept."""

    version: int
    tensors: tuple[tuple[str, Tensor], ...]


def write(descriptor: int, weights: Iterable[tuple[str, Tensor]], *, version: int) -> None:
    """Fill the new file `descriptor` with `weights`. It must not change once it was read.

    The tensors are written, not copied into a mapping: that takes a third of the time, without a
    page fault for each 4096 bytes, and without memory it is an OSError and no signal.
    StagedFileError for a dtype that the format does not know.
    """
    entries: list[list[Any]] = []
    kept: list[Tensor] = []
    offset = 0
    for name, tensor in weights:
        dtype = str(tensor.dtype).removeprefix("torch.")
        if dtype not in _DTYPES:
            raise StagedFileError(f"{name} has the dtype {dtype}")
        entries.append([name, dtype, list(tensor.shape), offset])
        kept.append(tensor)
        offset += _aligned(tensor.nbytes)
    header = json.dumps({"version": version, "tensors": entries}).encode()
    with open(descriptor, "wb", closefd=False) as file:
        _write_aligned(file, _LENGTH.pack(len(header)) + header)
        for tensor in kept:
            flat = tensor.detach().cpu().reshape(-1)
            _write_aligned(file, flat.view(torch.uint8).numpy().data)
        file.write(b"\0")  # no file of tensors without numbers ends before they begin


def _write_aligned(file: BufferedWriter, content: bytes | memoryview) -> None:
    file.write(content)
    file.write(bytes(_aligned(len(content)) - len(content)))


def read(path: str) -> StagedWeights:
    """Map the file at `path` for reading. StagedFileError if it cannot be what `write` wrote."""
    with open(path, "rb") as file:  # noqa: PTH123 - a path of /proc
        size = os.fstat(file.fileno()).st_size
        if size < _LENGTH.size:
            raise StagedFileError(f"the file has {size} bytes")
        memory = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY)
    (length,) = _LENGTH.unpack(memory[: _LENGTH.size])
    if not 0 < length <= min(LONGEST_HEADER, size - _LENGTH.size):
        raise StagedFileError(f"the description has {length} bytes of {size}")
    try:
        header = json.loads(memory[_LENGTH.size : _LENGTH.size + length])
        version, entries = int(header["version"]), list(header["tensors"])
    except (ValueError, KeyError, TypeError) as error:
        raise StagedFileError(f"the description is malformed: {error!r}") from error
    first = _aligned(_LENGTH.size + length)
    return StagedWeights(version, tuple(_tensor(memory, size, first, entry) for entry in entries))


def _tensor(memory: mmap.mmap, size: int, first: int, entry: Sequence[Any]) -> tuple[str, Tensor]:
    try:
        name, dtype, shape, offset = entry
        sizes = [int(number) for number in shape]
        element, at = _DTYPES[dtype], first + int(offset)
    except (ValueError, KeyError, TypeError) as error:
        raise StagedFileError(f"a tensor is described by {entry!r}") from error
    count = math.prod(sizes)
    fits = at + count * element.itemsize <= size
    if min([0, *sizes, int(offset)]) < 0 or not fits or at % element.itemsize:
        raise StagedFileError(f"{name!r} lies outside the file: {sizes} at {offset}")
    if not count:
        return str(name), torch.empty(sizes, dtype=element)
    flat = torch.frombuffer(memory, dtype=element, count=count, offset=at)
    return str(name), flat.view(sizes)


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
