"""A Megatron model's parameters as sharded tensors with Hugging Face names, shapes and layout.

Weights that leave or enter the engine, and checkpoints, all go through this one view. So a
checkpoint does not depend on how many ranks wrote it.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate, Shard

from rollcall_plugins.trainers.megatron.hf_mapping import HfTensor
from rollcall_runtime.train.train_engine import WeightInfo, WeightShard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from rollcall_plugins.trainers.megatron.hf_mapping import ParameterMapping
    from rollcall_plugins.trainers.megatron.shared_groups import ParallelGroups
    from rollcall_runtime.train.process_group import TrainerProcessGroup


class HfWeights:
    """The parameters of `model`, which is this rank's part of a whole one.

    Made on all ranks together. ValueError if a parameter has no mapping, as that of a patched model
    may.
    """

    def __init__(
        self,
        model: nn.Module,
        mappings: Mapping[str, ParameterMapping],
        *,
        groups: ParallelGroups,
        ranks: TrainerProcessGroup,
    ) -> None:
        self._groups = groups
        self._parameters: list[tuple[nn.Parameter, ParameterMapping]] = []
        for name, parameter in model.named_parameters():
            mapping = mappings.get(name)
            if mapping is None:
                raise ValueError(f"the model provider maps {name} to no Hugging Face tensor")
            self._parameters.append((parameter, mapping))
        self._stages = self._tensors_of_stages(ranks)

    def _tensors_of_stages(self, ranks: TrainerProcessGroup) -> dict[HfTensor, int]:
        """Every tensor of the model, in order, with the first pipeline stage that holds it."""
        own = [[t.name, t.shape, t.dim] for _, mapping in self._parameters for t in mapping.tensors]
        per_stage = ranks.size // self._groups.stages
        found: dict[HfTensor, int] = {}
        for stage, tensors in enumerate(ranks.gather(own)[::per_stage]):
            for name, shape, dim in tensors:
                found.setdefault(HfTensor(name, tuple(shape), dim), stage)
        return found

    def parameters(self) -> Iterator[tuple[nn.Parameter, ParameterMapping]]:
        """Each parameter of this rank with its mapping, in the model's order."""
        return iter(self._parameters)

    @property
    def _dtype(self) -> torch.dtype:
        return trained_tensor(self._parameters[0][0]).dtype

    def info(self) -> list[WeightInfo]:
        """Names, types and whole shapes."""
        return [WeightInfo(tensor.name, self._dtype, tensor.shape) for tensor in self._stages]

    def sharded(
        self, of_parameter: Callable[[nn.Parameter], Tensor] | None = None
    ) -> Iterator[tuple[HfTensor, DTensor]]:
        """The tensors of this rank's stage, each rank of it holding its part. Nothing is sent.

        They are what the optimizer changes, or what `of_parameter` gives: a tensor of the
        parameter's shape.
        """
        read = of_parameter or trained_tensor
        for parameter, mapping in self._parameters:
            parts = mapping.split(read(parameter).detach())
            for tensor, part in zip(mapping.tensors, parts, strict=True):
                yield tensor, self._sharded_tensor(tensor, part)

    def _sharded_tensor(self, tensor: HfTensor, part: Tensor) -> DTensor:
        place = Replicate() if tensor.dim is None else Shard(tensor.dim)
        return DTensor.from_local(
            part.contiguous(),
            self._groups.stage_mesh,
            (Replicate(), place),
            run_check=False,
            shape=torch.Size(tensor.shape),
            stride=torch.empty(tensor.shape, device="meta").stride(),
        )

    def whole(self) -> Iterator[tuple[str, Tensor]]:
        """Collective. Name and whole tensor, gathered one by one, on all ranks."""
        own = iter(self._of_own_stage())
        for tensor, stage in self._stages.items():
            if stage == self._groups.stage:
                found = next(own)[1].full_tensor()
            else:
                found = torch.empty(tensor.shape, dtype=self._dtype, device=self._device)
            yield tensor.name, self._groups.broadcast_from(stage, found)

    def pieces(self) -> Iterator[WeightShard]:
        """Collective. What this rank sends, so that the ranks of a stage send about as much.

        Of a divided tensor each tensor-parallel rank sends rows, after an exchange where the ranks
        divide its columns. Ranks with the same part take turns, tensor by tensor.
        """
        groups = self._groups
        turns = groups.data_size * groups.tensor_size
        rank = groups.data_rank * groups.tensor_size + groups.tensor_rank
        for number, (tensor, value) in enumerate(self._of_own_stage()):
            info = WeightInfo(tensor.name, value.dtype, tensor.shape)
            if tensor.dim is None:
                if number % turns == rank:
                    yield WeightShard(info, 0, value.to_local())
            elif number % groups.data_size == groups.data_rank:
                rows = value.redistribute(placements=(Replicate(), Shard(0))).to_local()
                first, end = HfTensor(tensor.name, tensor.shape, 0).part(
                    groups.tensor_rank, groups.tensor_size
                )
                if end > first:
                    yield WeightShard(info, first, rows)

    def _of_own_stage(self) -> Iterator[tuple[HfTensor, DTensor]]:
        """Without the copy of a tied embedding that a last stage has."""
        for tensor, value in self.sharded():
            if self._stages[tensor] == self._groups.stage:
                yield tensor, value

    @torch.no_grad()
    def fill(self, read: Callable[[HfTensor, tuple[slice, ...]], Tensor]) -> None:
        """Set all parameters. `read` returns the part of a tensor that the slices select."""
        for parameter, mapping in self._parameters:
            parts = [read(tensor, self._own_slices(tensor)) for tensor in mapping.tensors]
            set_parameter(parameter, mapping.join(parts))

    @torch.no_grad()
    def fill_from_rank_0(self, weights: Mapping[str, Tensor] | None) -> None:
        """Collective. Set all parameters from the whole tensors that rank 0 has; others give None.

        One tensor at a time travels, in the type that the optimizer has.
        """
        waiting = defaultdict(list)
        for parameter, mapping in self._parameters:
            waiting[mapping.tensors[-1]].append((parameter, mapping))
        parts: dict[HfTensor, Tensor] = {}
        for tensor in self._stages:
            if weights is None:
                whole = torch.empty(tensor.shape, dtype=self._dtype, device=self._device)
            else:
                whole = weights[tensor.name].to(self._device, self._dtype).contiguous()
            dist.broadcast(whole, src=0)
            parts[tensor] = whole[self._own_slices(tensor)]
            for parameter, mapping in waiting[tensor]:
                set_parameter(parameter, mapping.join([parts[part] for part in mapping.tensors]))
            if waiting[tensor]:
                parts.clear()

    @property
    def _device(self) -> torch.device:
        return self._parameters[0][0].device

    def _own_slices(self, tensor: HfTensor) -> tuple[slice, ...]:
        return own_slices(tensor, self._groups.tensor_rank, self._groups.tensor_size)


def trained_tensor(parameter: nn.Parameter) -> Tensor:
    """What the optimizer changes: Megatron keeps a float32 copy beside a bf16 parameter."""
    copy: Tensor | None = getattr(parameter, "main_param", None)
    return parameter if copy is None else copy


def set_parameter(parameter: nn.Parameter, value: Tensor) -> None:
    """Give `parameter`, and what the optimizer changes for it, this value."""
    parameter.data.copy_(value)
    trained_tensor(parameter).data.copy_(value)


def own_slices(tensor: HfTensor, rank: int, size: int) -> tuple[slice, ...]:
    """What `rank` of `size` holds of `tensor`, as an index."""
    slices = [slice(None)] * len(tensor.shape)
    if tensor.dim is not None:
        slices[tensor.dim] = slice(*tensor.part(rank, size))
    return tuple(slices)
