"""Weights that lie staged in files of shared memory, and a file of JSON that describes them.

The agent writes that file and vLLM's workers map all of them. Layout: 8 bytes, little-endian, the
length of the JSON; the JSON, `{"version": 7, "files": [path, ...], "tensors": [[name, dtype,
[sizes], offset, file], ...]}`; zeros up to a multiple of ALIGNMENT; the tensors that lie in no
other file. `file` numbers those of `files` from 1, and offsets are from the beginning; 0 is this
file, and offsets are from its first tensor.
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
    from collections.abc import Callable, Iterable, Sequence
    from io import BufferedWriter

    from torch import Tensor

    from rollcall_runtime.sync.memory.shared_buffers import FilePlace

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


def write(
    descriptor: int,
    weights: Iterable[tuple[str, Tensor]],
    *,
    version: int,
    place_of: Callable[[Tensor], FilePlace | None] = lambda _: None,
) -> None:
    """Fill the new file `descriptor` with `weights`. It must not change once it was read.

    Tensors for which `place_of` names a file stay there. Others are written, not copied into a
    mapping: that takes a third of the time, without a page fault for each 4096 bytes, and without
    memory it is an OSError and no signal. StagedFileError for a dtype that the format does not
    know.
    """
    entries: list[list[Any]] = []
    files: dict[str, int] = {}
    kept: list[Tensor] = []
    offset = 0
    for name, tensor in weights:
        dtype = str(tensor.dtype).removeprefix("torch.")
        if dtype not in _DTYPES:
            raise StagedFileError(f"{name} has the dtype {dtype}")
        place = place_of(tensor)
        if place is not None:
            number = files.setdefault(place.path, len(files) + 1)
            entries.append([name, dtype, list(tensor.shape), place.offset, number])
            continue
        entries.append([name, dtype, list(tensor.shape), offset, 0])
        kept.append(tensor)
        offset += _aligned(tensor.nbytes)
    header = json.dumps({"version": version, "files": list(files), "tensors": entries}).encode()
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
    """Map the file at `path`, and those that it names, for reading. StagedFileError if they cannot
    be what `write` described.
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
        others = [_map(str(name)) for name in header["files"]]
    except (ValueError, KeyError, TypeError) as error:
        raise StagedFileError(f"the description is malformed: {error!r}") from error
    places = [(own, _aligned(_LENGTH.size + length)), *((memory, 0) for memory in others)]
    return StagedWeights(version, tuple(_tensor(places, entry) for entry in entries))


def _map(path: str) -> mmap.mmap:
    with open(path, "rb") as file:  # noqa: PTH123 - a path of /proc
        if not os.fstat(file.fileno()).st_size:
            raise StagedFileError("the file is empty")
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)


def _tensor(places: Sequence[tuple[mmap.mmap, int]], entry: Sequence[Any]) -> tuple[str, Tensor]:
    try:
        name, dtype, shape, offset, file = entry
        sizes = [int(number) for number in shape]
        memory, first = places[int(file)]
        element, at = _DTYPES[dtype], first + int(offset)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise StagedFileError(f"a tensor is described by {entry!r}") from error
    count = math.prod(sizes)
    fits = at + count * element.itemsize <= len(memory)
    if min([0, *sizes, int(offset), int(file)]) < 0 or not fits or at % element.itemsize:
        raise StagedFileError(f"{name!r} lies outside the file: {sizes} at {offset}")
    if not count:
        return str(name), torch.empty(sizes, dtype=element)
    flat = torch.frombuffer(memory, dtype=element, count=count, offset=at)
    return str(name), flat.view(sizes)


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
