"""Whether a checkpoint can be used, before anything of it is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, ReadItem

from rollcall_runtime.models.finite import finite
from rollcall_runtime.train.checkpoint import files
from rollcall_runtime.train.checkpoint.checked_pickles import MetadataReader, metadata_problem

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

MODEL = "model"  # the prefix of a checkpoint's weights; others are the optimizer's


def checkpoint_problem(path: Path, *, part: int = 0, of: int = 1) -> str:
    """What is wrong with a checkpoint; "" if it can be used.

    Reads all files and compares their checksums, reads the metadata without running code, and looks
    whether all weights are finite. Each of `of` ranks checks its `part` of files and weights.
    """
    try:
        files.check_checkpoint(path, part=part, of=of)
    except files.TornError as error:
        return str(error)
    return metadata_problem(path) or _weights_problem(path, part=part, of=of)


def _weights_problem(path: Path, *, part: int, of: int) -> str:
    """Reads piece by piece, as they were written, so that no more than one is in memory."""
    reader = MetadataReader(path)
    try:
        metadata = reader.read_metadata()
    except FileNotFoundError:
        return ""  # of an engine with a form of its own
    planner = _FiniteCheck()
    try:
        pieces: list[ReadItem] = [
            _piece(name, saved, chunk)
            for name, saved in sorted(metadata.state_dict_metadata.items())
            if name.startswith(f"{MODEL}.") and isinstance(saved, TensorStorageMetadata)
            for chunk in saved.chunks
        ]
        reader.set_up_storage_reader(metadata, is_coordinator=True)
        reader.read_data(LoadPlan(pieces[part::of]), planner).wait()
    except Exception as error:  # noqa: BLE001 - whatever a damaged file leads torch to
        return f"its weights cannot be read: {type(error).__name__}: {error}"
    return f"weights are not finite: {planner.bad}" if planner.bad else ""


def _piece(name: str, saved: TensorStorageMetadata, chunk: ChunkStorageMetadata) -> _Piece:
    start, origin = MetadataIndex(name, chunk.offsets), torch.Size([0] * len(chunk.sizes))
    return _Piece(
        type=LoadItemType.TENSOR,
        dest_index=start,
        dest_offsets=origin,
        storage_index=start,
        storage_offsets=origin,
        lengths=chunk.sizes,
        dtype=saved.properties.dtype,
    )


@dataclass(frozen=True)
class _Piece(ReadItem):
    """A part of a tensor that one rank wrote."""

    dtype: torch.dtype


class _FiniteCheck(DefaultLoadPlanner):
    """Loads nothing: each piece goes to memory of its own and is looked at there."""

    bad = ""

    def resolve_tensor(self, read_item: ReadItem) -> Tensor:
        return torch.empty(read_item.lengths, dtype=cast("_Piece", read_item).dtype)

    def commit_tensor(self, read_item: ReadItem, tensor: Tensor) -> None:
        if not self.bad and tensor.is_floating_point() and not finite(tensor):
            self.bad = read_item.dest_index.fqn.removeprefix(f"{MODEL}.")
