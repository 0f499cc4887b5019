"""What trainer ranks tell each other of a save, as JSON: who writes what, and where it is.

torch.distributed.checkpoint has the same as objects and sends them as pickles.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
)
from torch.distributed.checkpoint.planner import (
    SavePlan,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.storage import WriteResult

from rollcall_protocol.wire.json_codec import decode, parse, to_json

if TYPE_CHECKING:
    from collections.abc import Sequence

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PlannedTensor:
    """The part of a tensor that one rank has.

    `size` is of the whole tensor, `offsets` and `lengths` of the part, by dimension in elements.
    `dtype` is torch's name. `sharded`: other ranks have other parts; else each has the whole.
    """

    size: tuple[int, ...]
    offsets: tuple[int, ...]
    lengths: tuple[int, ...]
    dtype: str
    requires_grad: bool
    pinned: bool
    sharded: bool

    def __post_init__(self) -> None:
        if not len(self.size) == len(self.offsets) == len(self.lengths):
            raise ValueError("size, offsets and lengths have different numbers of dimensions")
        for whole, offset, length in zip(self.size, self.offsets, self.lengths, strict=True):
            if offset < 0 or length < 0 or offset + length > whole:
                raise ValueError(f"{length} elements from {offset} on are not within {whole}")
        if not isinstance(getattr(torch, self.dtype, None), torch.dtype):
            raise ValueError(f"{self.dtype!r} is no dtype of torch")  # noqa: TRY004 - a message's

    @classmethod
    def of(cls, item: WriteItem) -> PlannedTensor:
        """ValueError for a tensor that is not strided and contiguous, as all here are."""
        found = item.tensor_data
        if found is None:
            raise ValueError(f"{item.index.fqn} is no tensor")
        properties = found.properties
        form = (properties.layout, properties.memory_format)
        if form != (torch.strided, torch.contiguous_format):
            raise ValueError(f"{item.index.fqn} has the form {form}, which is not saved")
        return cls(
            size=tuple(found.size),
            offsets=tuple(found.chunk.offsets),
            lengths=tuple(found.chunk.sizes),
            dtype=str(properties.dtype).removeprefix("torch."),
            requires_grad=properties.requires_grad,
            pinned=properties.pin_memory,
            sharded=item.type is WriteItemType.SHARD,
        )

    def write_item(self, name: str) -> WriteItem:
        """The same in torch's words."""
        offsets = torch.Size(self.offsets)
        return WriteItem(
            index=MetadataIndex(name, offsets),
            type=WriteItemType.SHARD if self.sharded else WriteItemType.TENSOR,
            tensor_data=TensorWriteData(
                chunk=ChunkStorageMetadata(offsets, torch.Size(self.lengths)),
                properties=TensorProperties(
                    dtype=getattr(torch, self.dtype),
                    requires_grad=self.requires_grad,
                    pin_memory=self.pinned,
                ),
                size=torch.Size(self.size),
            ),
        )


@dataclass(frozen=True, slots=True)
class PlannedItem:
    """What one rank can write. `path`: keys, and indices of lists, that lead to it.

    `tensor` is None for a value of another kind; other ranks do not see its bytes.
    """

    path: tuple[Any, ...]
    tensor: PlannedTensor | None = None

    def __post_init__(self) -> None:
        if not self.path or not all(_is_step(step) for step in self.path):
            raise ValueError("path must consist of names, and numbers from 0 on")

    @property
    def name(self) -> str:
        """As torch makes it of the path."""
        return ".".join(map(str, self.path))

    @property
    def kind(self) -> tuple[object, ...]:
        """What all ranks that have something of this name must agree on."""
        found = self.tensor
        shape = () if found is None else (found.size, found.dtype, found.sharded)
        return (self.path, *shape)

    def write_item(self) -> WriteItem:
        """The same in torch's words."""
        if self.tensor is None:
            return WriteItem(index=MetadataIndex(self.name), type=WriteItemType.BYTE_IO)
        return self.tensor.write_item(self.name)


@dataclass(frozen=True, slots=True)
class RankPlan:
    """All that one rank can write."""

    items: tuple[PlannedItem, ...]

    @classmethod
    def of(cls, plan: SavePlan) -> RankPlan:
        """From the local plan of torch's DefaultSavePlanner."""
        return cls(
            tuple(
                PlannedItem(
                    path=tuple(plan.planner_data[item.index.fqn]),
                    tensor=None if item.type is WriteItemType.BYTE_IO else PlannedTensor.of(item),
                )
                for item in plan.items
            )
        )

    def save_plan(self) -> SavePlan:
        """The same in torch's words. ValueError if something is in it twice."""
        items = [item.write_item() for item in self.items]
        if len({item.index for item in items}) < len(items):
            raise ValueError("a part of a tensor is in it twice")
        return SavePlan(items, planner_data={item.name: item.path for item in self.items})


@dataclass(frozen=True, slots=True)
class RankShare:
    """What of its own plan a rank shall write: `places` there, ascending.

    `hints`: for each, where torch's metadata has the part among those of its tensor; -1 without.
    """

    places: tuple[int, ...]
    hints: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.places) != len(self.hints):
            raise ValueError("places and hints differ in number")
        following = zip((-1, *self.places), self.places, strict=False)
        if not all(before < place for before, place in following):
            raise ValueError("places must ascend from 0 on")
        if not all(hint >= -1 for hint in self.hints):
            raise ValueError("hints must not be below -1")

    @classmethod
    def of(cls, plan: SavePlan, planned: SavePlan) -> RankShare:
        """`plan` is what torch left of the plan `planned` of the same rank."""
        place_of = {item.index: place for place, item in enumerate(planned.items)}
        hints = [item.index.index for item in plan.items]
        return cls(
            places=tuple(place_of[item.index] for item in plan.items),
            hints=tuple(-1 if hint is None else hint for hint in hints),
        )

    def select(self, planned: SavePlan) -> SavePlan:
        """What to write of the rank's own plan. ValueError for a place that it does not have."""
        if self.places and self.places[-1] >= len(planned.items):
            raise ValueError(f"place {self.places[-1]} of a plan of {len(planned.items)} items")
        items = [
            _with_hint(planned.items[place], None if hint < 0 else hint)
            for place, hint in zip(self.places, self.hints, strict=True)
        ]
        return replace(planned, items=items)


@dataclass(frozen=True, slots=True)
class WrittenItem:
    """Where an item is: `length` bytes from `offset` on, of a file in the checkpoint."""

    file: str
    offset: int
    length: int

    def __post_init__(self) -> None:
        if self.offset < 0 or self.length < 0:
            raise ValueError("offset and length must not be negative")


@dataclass(frozen=True, slots=True)
class Written:
    """What a rank has written: an entry for each item of its share, in the share's order."""

    items: tuple[WrittenItem, ...]

    @classmethod
    def of(cls, results: Sequence[WriteResult], plan: SavePlan) -> Written:
        """`results` are those of torch's FileSystemWriter for `plan`."""
        found = {result.index: result.storage_data for result in results}
        where = [found[item.index] for item in plan.items]
        return cls(tuple(WrittenItem(w.relative_path, w.offset, w.length) for w in where))

    def results(self, plan: SavePlan, *, rank: int) -> list[WriteResult]:
        """The same in torch's words, for the share `plan` of `rank`.

        ValueError if it is not about these items, has too few bytes for one of them, or names a
        file that is not the rank's own.
        """
        if len(self.items) != len(plan.items):
            raise ValueError(f"it wrote {len(self.items)} items, not its {len(plan.items)}")
        own = re.compile(rf"__{rank}_[0-9]+\.distcp")
        for item in self.items:
            if not own.fullmatch(item.file):
                raise ValueError(f"{item.file!r} is no name of a file of rank {rank}")
        for wanted, item in zip(plan.items, self.items, strict=True):
            if item.length < _least_bytes(wanted):
                raise ValueError(f"{item.length} bytes cannot hold {wanted.index.fqn}")
        return [
            WriteResult(
                index=wanted.index,
                size_in_bytes=item.length,
                storage_data=_StorageInfo(item.file, item.offset, item.length),
            )
            for wanted, item in zip(plan.items, self.items, strict=True)
        ]


def _least_bytes(item: WriteItem) -> int:
    """Of a part of a tensor, without what torch adds to it in the file."""
    found = item.tensor_data
    if found is None:
        return 0
    return math.prod(found.chunk.sizes) * found.properties.dtype.itemsize


def to_bytes(message: RankPlan | RankShare | Written) -> bytes:
    """As JSON in UTF-8."""
    return to_json(message).encode()


def from_bytes(kind: type[T], data: bytes, *, rank: int) -> T:
    """ValueError, with the rank that sent it and the field, for anything but a `kind`."""
    return decode(kind, parse(data), path=f"rank {rank}: {kind.__name__}")


def check_agreement(plans: Sequence[RankPlan]) -> None:
    """ValueError if two ranks call different things by the same name."""
    first: dict[str, tuple[int, tuple[object, ...]]] = {}
    for rank, plan in enumerate(plans):
        for item in plan.items:
            other, kind = first.setdefault(item.name, (rank, item.kind))
            if kind != item.kind:
                raise ValueError(f"ranks {other} and {rank} differ on what {item.name} is")


def _is_step(step: object) -> bool:
    return isinstance(step, str) or (type(step) is int and step >= 0)


def _with_hint(item: WriteItem, hint: int | None) -> WriteItem:
    return replace(item, index=replace(item.index, index=hint))
