"""Gives the parameters of a model their values: whole, or the part that this rank holds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import torch

from rollcall_runtime.models.sharded_tensors import is_sharded

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor, nn
    from torch.distributed.tensor import DTensor

    from rollcall_protocol.wire.weight_manifest import RowRange


class WeightReader(ABC):
    """The tensors of a model by name; each is read when it is asked for."""

    @property
    @abstractmethod
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Every name with the shape of the whole tensor."""

    @abstractmethod
    def read(self, name: str, rows: RowRange | None = None) -> Tensor:
        """The tensor on the CPU in the source's dtype; `rows` alone, if they are given.

        KeyError for a name that is not in `shapes`.
        """


def materialise(model: nn.Module, device: torch.device | str) -> None:
    """Give the parameters of a model that was built empty memory, without values, on `device`.

    Buffers keep their values and move there; tied parameters stay tied. Works on a model that FSDP2
    has sharded, too: each rank gets memory for its own part.
    """
    owners: dict[int, list[tuple[nn.Module, str]]] = {}
    buffers: list[tuple[nn.Module, str, Tensor]] = []
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            owners.setdefault(id(parameter), []).append((module, name))
        for name, buffer in module.named_buffers(recurse=False):
            if not buffer.is_meta:
                buffers.append((module, name, buffer))
    model.to_empty(device=torch.device(device))
    for module, name, buffer in buffers:
        setattr(module, name, buffer.to(device))
    for (first, first_name), *others in owners.values():
        for module, name in others:
            setattr(module, name, getattr(first, first_name))


@torch.no_grad()
def fill(model: nn.Module, weights: WeightReader) -> None:
    """Read every parameter and persistent buffer of `model`, in the dtype and place that it has.

    Of a DTensor only the rows are read that this rank has a part of. A tied parameter is filled
    under one of its names. The parameters have memory, by `materialise` for instance.
    """
    state = model.state_dict(keep_vars=True)
    for name in weights.shapes:
        _fill(name, state[name], weights)


def _fill(name: str, tensor: Tensor, weights: WeightReader) -> None:
    if is_sharded(tensor):
        _fill_own_part(name, tensor, weights)
    else:
        tensor.copy_(weights.read(name))


def _fill_own_part(name: str, tensor: DTensor, weights: WeightReader) -> None:
    from torch.distributed.tensor import Replicate, Shard  # noqa: PLC0415 - see is_sharded
    from torch.distributed.tensor._utils import (  # noqa: PLC0415
        compute_local_shape_and_global_offset,
    )

    if not all(isinstance(place, (Shard, Replicate)) for place in tensor.placements):
        raise NotImplementedError(
            f"{name} is placed as {tensor.placements}; only shards and copies can be filled"
        )
    local = tensor.to_local()
    if not local.numel():
        return
    shape, offset = compute_local_shape_and_global_offset(
        tensor.shape, tensor.device_mesh, tensor.placements
    )
    part = [slice(first, first + count) for first, count in zip(offset, shape, strict=True)]
    rows = weights.read(name, (part[0].start, part[0].stop))
    local.copy_(rows[(slice(None), *part[1:])])
