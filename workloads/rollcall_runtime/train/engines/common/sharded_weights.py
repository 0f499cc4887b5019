"""A model's weights out and in, where its tensors are whole or sharded by rows (DTensor)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from rollcall_protocol.train_settings import ADAPTER
from rollcall_runtime.sync.weights.sharded_rows import is_cut_by_rows, own_rows
from rollcall_runtime.train.engines.common.lora import (
    LowRankAdapter,
    adapter_name,
    adapter_of,
    exported_name,
)
from rollcall_runtime.train.train_engine import WeightInfo, WeightShard

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import Tensor

    from rollcall_protocol.train_settings import EngineSettings
    from rollcall_runtime.train.process_group import TrainerProcessGroup


@dataclass(frozen=True, slots=True)
class ExportedWeight:
    """One exported tensor, where it is in the model, and what an adapter adds to it."""

    info: WeightInfo
    tensor: Tensor
    adapter: LowRankAdapter | None


def exported_weights(state: Mapping[str, Tensor], settings: EngineSettings) -> list[ExportedWeight]:
    """The weights of a model's state by the names of its source; a tied one once, as the first.

    Where the adapters alone leave the trainer these are their tensors, by PEFT's names.
    """
    alone = settings.lora_export == ADAPTER
    found: list[ExportedWeight] = []
    seen: set[int] = set()
    for name, tensor in state.items():
        exported = adapter_name(name) if alone else exported_name(name)
        if not exported or id(tensor) in seen:
            continue
        seen.add(id(tensor))
        info = WeightInfo(exported, tensor.dtype, tuple(tensor.shape))
        adapter = None if alone else adapter_of(name, state, settings)
        found.append(ExportedWeight(info, tensor.detach(), adapter))
    return found


@torch.no_grad()
def whole_weights(weights: list[ExportedWeight]) -> Iterator[tuple[str, Tensor]]:
    """Collective. Each tensor gathered as the iterator advances, with its adapter merged."""
    for weight in weights:
        tensor = _whole(weight.tensor)
        adapter = weight.adapter
        if adapter is not None:
            tensor = _merged(tensor, _whole(adapter.up), _whole(adapter.down), adapter.scale)
        yield weight.info.name, tensor


@torch.no_grad()
def own_shards(weights: list[ExportedWeight], *, rank: int) -> Iterator[WeightShard]:
    """Collective. The rows that this rank sends, with adapters merged.

    Where several ranks hold the same rows they take turns, tensor by tensor, and so they do with
    tensors that are not sharded by rows alone, which are gathered. The first rank sends what is not
    sharded.
    """
    for number, weight in enumerate(weights):
        tensor, adapter = weight.tensor, weight.adapter
        # Gathering is collective, so that ranks which send nothing of this tensor take part.
        down = _whole(adapter.down) if adapter is not None else None
        if not isinstance(tensor, DTensor):
            if rank == 0:
                if adapter is not None and down is not None:
                    tensor = _merged(tensor, adapter.up, down, adapter.scale)
                yield WeightShard(weight.info, 0, tensor)
            continue
        if not is_cut_by_rows(tensor):
            whole = tensor.full_tensor()
            if number % tensor.device_mesh.size() == rank:
                yield WeightShard(weight.info, 0, whole)
            continue
        start, sends = own_rows(tensor, number)
        local = tensor.to_local()
        if adapter is not None and down is not None:
            local = _merged(local, _local(adapter.up), down, adapter.scale)
        if sends:
            yield WeightShard(weight.info, start, local)


@torch.no_grad()
def replace_weights(
    weights: list[ExportedWeight], given: Mapping[str, Tensor] | None, ranks: TrainerProcessGroup
) -> None:
    """Collective. Take rank 0's tensors of these names; adapters are made to add nothing.

    `expect_weights` comes before it.
    """
    for weight in weights:
        info = weight.info
        whole = (
            given[info.name].detach().cpu().contiguous()
            if given is not None and ranks.rank == 0
            else torch.empty(info.shape, dtype=info.dtype)
        )
        ranks.broadcast(whole.reshape(-1).view(torch.uint8))  # gloo does not move every dtype
        put(weight.tensor, whole)
        if weight.adapter is not None:
            _local(weight.adapter.up).zero_()


@torch.no_grad()
def put(tensor: Tensor, whole: Tensor) -> None:
    """Copy into a parameter what this rank holds of it."""
    if not isinstance(tensor, DTensor):
        tensor.copy_(whole)
        return
    shape, offset = compute_local_shape_and_global_offset(
        tensor.shape, tensor.device_mesh, tensor.placements
    )
    part = (slice(first, first + count) for first, count in zip(offset, shape, strict=True))
    tensor.to_local().copy_(whole[tuple(part)])


def expect_weights(
    infos: list[WeightInfo], given: Mapping[str, Tensor] | None, ranks: TrainerProcessGroup
) -> None:
    """Collective. ValueError on all ranks if rank 0's names, dtypes or shapes are not `infos`."""
    problem = ""
    if ranks.rank == 0:
        wanted = {info.name: (info.dtype, info.shape) for info in infos}
        found = {name: (t.dtype, tuple(t.shape)) for name, t in (given or {}).items()}
        wrong = sorted({name for name, _ in wanted.items() ^ found.items()})
        problem = f"not this model's: {', '.join(wrong[:3])}" if wrong else ""
    problem = ranks.broadcast_value(problem)
    if problem:
        raise ValueError(problem)


def _merged(base: Tensor, up: Tensor, down: Tensor, scale: float) -> Tensor:
    return base + (scale * (up @ down)).to(base.dtype)


def _whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
