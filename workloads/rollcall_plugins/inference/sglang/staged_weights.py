"""Weights in memory, as a directory of safetensors that SGLang's processes load.

The file has no name on any disk: the directory has a link to a descriptor of this process, so that
the memory is free when the descriptor is closed, or this process ends, however it ends.
"""

from __future__ import annotations

import json
import mmap
import os
import shutil
import struct
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor

_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
}
_LENGTH = struct.Struct("<Q")
_ALIGNMENT = 8  # bytes, of the first tensor


@dataclass(frozen=True, slots=True)
class StagedVersion:
    """`version` in `directory`, until `close`."""

    version: int
    directory: Path
    descriptor: int

    def close(self) -> None:
        """Remove the directory and close the file, which frees its memory."""
        shutil.rmtree(self.directory, ignore_errors=True)
        os.close(self.descriptor)


def stage(folder: Path, weights: Iterable[tuple[str, Tensor]], *, version: int) -> StagedVersion:
    """Copy `weights` into a new directory of `folder`. ValueError names a dtype without a name."""
    descriptor = os.memfd_create(f"rollcall-{version}")
    try:
        _write(descriptor, weights)
        directory = Path(tempfile.mkdtemp(prefix=f"version-{version}-", dir=folder))
        (directory / "model.safetensors").symlink_to(f"/proc/{os.getpid()}/fd/{descriptor}")
    except BaseException:
        os.close(descriptor)
        raise
    return StagedVersion(version, directory, descriptor)


def _write(descriptor: int, weights: Iterable[tuple[str, Tensor]]) -> None:
    # The widest first, so that each begins at a multiple of its own width.
    tensors = sorted(weights, key=lambda item: -item[1].element_size())
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in tensors:
        if tensor.dtype not in _DTYPES:
            raise ValueError(f"{name} has the dtype {tensor.dtype}, which SGLang is not given")
        offsets = [end, end + tensor.nbytes]
        dtype = _DTYPES[tensor.dtype]
        header[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": offsets}
        end = offsets[1]
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    first = _LENGTH.size + len(text)
    os.ftruncate(descriptor, first + end)
    with mmap.mmap(descriptor, first + end) as memory:
        memory[:first] = _LENGTH.pack(len(text)) + text
        whole = torch.frombuffer(memory, dtype=torch.uint8)
        for _, tensor in tensors:
            place = whole[first : first + tensor.nbytes]
            if tensor.nbytes:
                place.view(tensor.dtype).view(tensor.shape).copy_(tensor.detach())
            first += tensor.nbytes
        del whole, place
