"""Reads the pickles in torch's checkpoints without letting them run code.

torch.distributed.checkpoint writes a pickle, `.metadata`, and pickles each value that is no tensor;
it reads both as they are: a process that can write to the volume could run code in the trainer.
"""

from __future__ import annotations

import pickle  # noqa: TID251 - an Unpickler that finds a fixed set of classes
from enum import Enum, EnumType
from typing import IO, TYPE_CHECKING, Any, cast

import torch
from torch.distributed.checkpoint import metadata as contents
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader

if TYPE_CHECKING:
    import io
    from pathlib import Path

    from torch.distributed.checkpoint.planner import ReadItem

_METADATA = ".metadata"
# What the metadata of a checkpoint consists of; torch 2.6 and 2.13 agree.
_CLASSES = {
    "pathlib": {"PosixPath", "PurePosixPath"},
    "pathlib._local": {"PosixPath", "PurePosixPath"},
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch.distributed.checkpoint.metadata": {
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    },
    "torch.serialization": {"_get_layout"},
}


class MetadataReader(FileSystemReader):
    """Reads a checkpoint. ValueError for metadata that is no torch checkpoint's."""

    def read_metadata(self, *_: Any, **__: Any) -> contents.Metadata:
        """As FileSystemReader's, with the classes that metadata consists of and no others."""
        path = self.fs.concat_path(self.path, _METADATA)
        with self.fs.create_stream(path, "rb") as file:
            found = _load(cast("IO[bytes]", file))
        if getattr(found, "storage_meta", None) is None:
            found.storage_meta = contents.StorageMeta()
        if found.storage_meta is not None:
            found.storage_meta.load_id = self.load_id
        return found


class PlainValuesPlanner(DefaultLoadPlanner):
    """Loads values that are no tensors if torch considers them plain (weights_only)."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """As DefaultLoadPlanner's, which loads anything. UnpicklingError for what is not plain."""
        torch.load(value, weights_only=True)  # noqa: TID251 - it finds no other classes
        value.seek(0)
        super().load_bytes(read_item, value)


def metadata_problem(path: Path) -> str:
    """What is wrong with the metadata of a checkpoint; empty if it is sound, or there is none."""
    try:
        MetadataReader(path).read_metadata()
    except FileNotFoundError:
        return ""
    except (OSError, ValueError) as error:
        return f"{_METADATA} cannot be used: {error}"
    return ""


class _MetadataUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("builtins", "getattr"):
            return _member_of
        known = name in _CLASSES.get(module, ())
        if module == "torch":
            known = name == "Size" or isinstance(getattr(torch, name, None), torch.dtype)
        if not known:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which is no part of metadata")
        return super().find_class(module, name)


def _member_of(kind: Any, name: str) -> Enum:
    """A member of an enumeration, which Python 3.11.2 pickles as an attribute of its class."""
    if not isinstance(kind, EnumType) or name not in kind.__members__:
        raise pickle.UnpicklingError(f"it reads the attribute {name} of {kind}")
    member: Enum = kind.__members__[name]
    return member


def _load(file: IO[bytes]) -> contents.Metadata:
    try:
        found = _MetadataUnpickler(file).load()
    except OSError:
        raise
    except Exception as error:  # an unpickler raises whatever a damaged file leads it to
        raise ValueError(f"{type(error).__name__}: {error}") from error
    if not isinstance(found, contents.Metadata):
        raise ValueError(f"it is a {type(found).__name__}")  # noqa: TRY004 - a file's fault
    return found
