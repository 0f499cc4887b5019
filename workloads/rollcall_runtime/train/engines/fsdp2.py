"""FSDP2: parameters, gradients and optimizer state sharded over the ranks by fully_shard.

Works on one rank as well. Runs on CPUs over gloo; torch 2.6 and later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.tensor import DTensor

from rollcall_protocol.train_settings import BUILT_IN
from rollcall_runtime.models.model_parts import layers
from rollcall_runtime.models.weight_loading import fill, materialise
from rollcall_runtime.train import torch26_compat
from rollcall_runtime.train.engines.common.cpu_collectives import use_cpu_collectives
from rollcall_runtime.train.engines.common.module_engine import ModuleEngine
from rollcall_runtime.train.engines.common.precision import compute_dtype
from rollcall_runtime.train.train_engine import FIELD
from rollcall_runtime.worker.errors import SpecError

if TYPE_CHECKING:
    from rollcall_runtime.models.weight_loading import WeightReader
    from rollcall_runtime.train.train_engine import EngineSetup


class Fsdp2Engine(ModuleEngine):
    """See TrainEngine. Not usable before `initialize`."""

    settings_known: ClassVar[frozenset[str]] = BUILT_IN["fsdp2"]

    def __init__(self, setup: EngineSetup) -> None:
        super().__init__(setup)
        on_cpu = setup.ranks.device.type == "cpu"
        if setup.settings.reshard_after_forward and on_cpu and torch26_compat.CANNOT_RESHARD:
            problem = "needs torch 2.7 or newer on a CPU"
            raise SpecError(f"{FIELD}.config.reshardAfterForward", problem)

    def _shard(self, module: nn.Module, weights: WeightReader) -> nn.Module:
        model: nn.Module = module.model  # type: ignore[assignment]
        self._shard_empty(module, model)
        # Each rank reads its own part alone.
        offloaded = self.setup.settings.offload == "parameters"
        materialise(module, "cpu" if offloaded else self.setup.ranks.device)
        fill(model, weights)
        return module

    def _shard_empty(self, module: nn.Module, model: nn.Module) -> None:
        ranks, settings = self.setup.ranks, self.setup.settings
        if ranks.size == 1 and settings.precision == "fp32" and settings.offload != "parameters":
            return  # there is nothing to shard, and copying parameters to gather them costs time
        torch26_compat.complete_cpu_streams()
        mesh = (
            ranks.mesh(shard=ranks.size)
            if settings.replicas == 1
            else ranks.mesh(replicate=settings.replicas, shard=ranks.size // settings.replicas)
        )
        on_cpu = ranks.device.type == "cpu"
        options: dict[str, Any] = {
            "mesh": mesh,
            "mp_policy": MixedPrecisionPolicy(
                param_dtype=compute_dtype(settings), reduce_dtype=torch.float32
            )
            if settings.precision != "fp32"
            else MixedPrecisionPolicy(),
            "offload_policy": CPUOffloadPolicy(pin_memory=not on_cpu)
            if settings.offload == "parameters"
            else OffloadPolicy(),
        }
        for layer in layers(model):
            fully_shard(layer, reshard_after_forward=settings.reshard_after_forward, **options)
        # What is left is needed again first in the backward pass, so it stays gathered.
        fully_shard(module, reshard_after_forward=False, **options)
        if on_cpu:
            use_cpu_collectives(module)
        # The mean over ranks that FSDP takes of the gradients is to come out as their sum.
        self.gradient_scale = ranks.size / torch26_compat.sum_per_mean(mesh)

    def _clip_gradients(self, max_norm: float) -> float:
        self._placement.expect_on_worker("model", "gradients")
        norm = nn.utils.clip_grad_norm_(self._parameters, max_norm)
        return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)

    def _free_gathered(self) -> None:
        for module in self._module.modules():
            if isinstance(module, FSDPModule):
                module.reshard()
