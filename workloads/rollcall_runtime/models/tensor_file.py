"""Writes tensors as a safetensors file that whoever may read its neighbours may read, too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from safetensors.torch import save_file

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor


def write_tensors(
    tensors: Mapping[str, Tensor], path: Path, *, metadata: dict[str, str] | None = None
) -> None:
    """Write `path`, with the mode that the umask gives: safetensors itself gives 0600.

    OSError or SafetensorError if it cannot be written.
    """
    path.touch()
    mode = path.stat().st_mode
    save_file(dict(tensors), path, metadata=metadata)
    path.chmod(mode)
