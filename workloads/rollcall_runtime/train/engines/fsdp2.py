"""FSDP2: parameters, gradients and optimizer state sharded over the ranks by fully_shard.

Works on one rank as well. Runs on CPUs over gloo; torch 2.6 and later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing,
)
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.tensor import DTensor

from rollcall_protocol.train_settings import BUILT_IN
from rollcall_runtime.models.model_parts import layers, output_layer
from rollcall_runtime.models.open_model import open_model
from rollcall_runtime.models.weight_loading import fill, materialise
from rollcall_runtime.train import torch26_compat
from rollcall_runtime.train.checkpoint import files
from rollcall_runtime.train.checkpoint.distributed_save import (
    check_same_tensors,
    load_rng_states,
    prepare_save,
    use_rng_states,
)
from rollcall_runtime.train.engines.common import sharded_weights
from rollcall_runtime.train.engines.common.compiling import compile_layers
from rollcall_runtime.train.engines.common.lora import AdaptedWeights, add_adapters
from rollcall_runtime.train.engines.common.microbatched_engine import MicrobatchedEngine
from rollcall_runtime.train.engines.common.model_heads import model_output, with_head
from rollcall_runtime.train.engines.common.optimizers import build_optimizer
from rollcall_runtime.train.engines.common.placement import StatePlacement
from rollcall_runtime.train.engines.common.precision import compute_dtype
from rollcall_runtime.train.train_engine import FIELD, Head, WeightInfo, WeightShard
from rollcall_runtime.worker.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from torch import Tensor

    from rollcall_runtime.train.engines.common.sharded_weights import ExportedWeight
    from rollcall_runtime.train.train_batch import TrainBatch
    from rollcall_runtime.train.train_engine import EngineSetup
    from rollcall_runtime.train.train_loss import ModelOutput

_OPTIMIZER = "optimizer"


class Fsdp2Engine(MicrobatchedEngine):
    """See TrainEngine. Not usable before `initialize`."""

    settings_known: ClassVar[frozenset[str]] = BUILT_IN["fsdp2"]
    devices: ClassVar[frozenset[str]] = frozenset({"cpu", "cuda", "npu"})
    heads: ClassVar[frozenset[Head]] = frozenset(
        {"language-model", "value", "sequence-classification"}
    )

    _module: nn.Module  # the model with its head
    _parameters: list[nn.Parameter]  # those that are trained
    _placement: StatePlacement

    def __init__(self, setup: EngineSetup) -> None:
        super().__init__(setup)
        settings, config = setup.settings, f"{FIELD}.config"
        if setup.own_settings:
            key = min(setup.own_settings)
            raise SpecError(f"{config}.{key}", "unknown setting of this engine")
        on_cpu = setup.ranks.device.type == "cpu"
        if settings.reshard_after_forward and on_cpu and torch26_compat.CANNOT_RESHARD:
            raise SpecError(f"{config}.reshardAfterForward", "needs torch 2.7 or newer on a CPU")

    def initialize(self) -> None:
        settings = self.setup.settings
        if settings.threads:
            torch.set_num_threads(settings.threads)
        torch.use_deterministic_algorithms(self.setup.deterministic)
        source, head, seed = open_model(self.setup.model), self.setup.head, self.setup.seed
        model = source.build_empty(head=head)
        weights = source.weights(head=head, seed=seed)
        if settings.lora_rank:
            add_adapters(model, settings)
            weights = AdaptedWeights(weights, model, seed=seed)
            if self.setup.head != "language-model":  # the head itself is new
                output_layer(model).requires_grad_()
        if settings.activation_checkpointing == "full":
            units = set(layers(model))
            apply_activation_checkpointing(model, check_fn=units.__contains__)
        if settings.compile:
            compile_layers(layers(model))
        self._module = with_head(model, self.setup.head, logprob_chunk=settings.logprob_chunk)
        self._module.eval()
        self._shard()
        # Each rank reads its own part alone.
        offloaded = settings.offload == "parameters"
        materialise(self._module, "cpu" if offloaded else self.setup.ranks.device)
        fill(model, weights)
        self._parameters = [p for p in self._module.parameters() if p.requires_grad]
        if self.setup.optimizer is not None:
            self._optimizer = build_optimizer(self.setup.optimizer, self._parameters, settings)
        self._placement = StatePlacement(self.setup.ranks.device)

    @property
    def _model(self) -> nn.Module:
        model: nn.Module = self._module.model  # type: ignore[assignment]
        return model

    def _shard(self) -> None:
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
        for layer in layers(self._model):
            fully_shard(layer, reshard_after_forward=settings.reshard_after_forward, **options)
        # What is left is needed again first in the backward pass, so it stays gathered.
        fully_shard(self._module, reshard_after_forward=False, **options)
        # The mean over ranks that FSDP takes of the gradients is to come out as their sum.
        self.gradient_scale = ranks.size / torch26_compat.sum_per_mean(mesh)

    def close(self) -> None:
        for name in ("_module", "_parameters"):
            self.__dict__.pop(name, None)
        self._optimizer = None

    def to(
        self,
        device: Literal["worker", "host"],
        *,
        model: bool = True,
        optimizer: bool = True,
        gradients: bool = True,
    ) -> None:
        self._reshard()
        self._placement.move(
            device,
            model=self._module if model else None,
            optimizer=self._optimizer if optimizer else None,
            gradients=self._parameters if gradients else None,
        )

    def _set_training(self, training: bool) -> bool:
        before = self._module.training
        self._module.train(training)
        return before

    def _forward(self, batch: TrainBatch, *, entropy: bool) -> ModelOutput:
        self._placement.expect_on_worker("model")
        return model_output(
            self._module,
            batch,
            head=self.setup.head,
            packing=self.setup.settings.packing,
            entropy=entropy,
        )

    def forward(self, batch: TrainBatch, *, entropy: bool = False) -> ModelOutput:
        output = super().forward(batch, entropy=entropy)
        self._reshard()  # else gathered parameters would outlive the next optimizer step
        return output

    def zero_grad(self) -> None:
        super().zero_grad()
        self._placement.forget_gradients()

    def _clip_gradients(self, max_norm: float) -> float:
        self._placement.expect_on_worker("model", "gradients")
        norm = nn.utils.clip_grad_norm_(self._parameters, max_norm)
        return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)

    def _apply_gradients(self, optimizer: torch.optim.Optimizer) -> None:
        offloaded = self.setup.settings.offload == "optimizer"
        if offloaded:
            self._placement.move("worker", optimizer=optimizer)
        self._placement.expect_on_worker("optimizer")
        optimizer.step()
        if offloaded:
            self._placement.move("host", optimizer=optimizer)

    def _reshard(self) -> None:
        for module in self._module.modules():
            if isinstance(module, FSDPModule):
                module.reshard()

    def _weights(self) -> list[ExportedWeight]:
        return sharded_weights.exported_weights(self._model, self.setup.settings)

    def weight_info(self) -> list[WeightInfo]:
        return [weight.info for weight in self._weights()]

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        return sharded_weights.whole_weights(self._weights())

    def weight_shards(self) -> Iterator[WeightShard]:
        return sharded_weights.own_shards(self._weights(), rank=self.setup.ranks.rank)

    def load_weights(self, weights: Mapping[str, Tensor] | None) -> None:
        sharded_weights.replace_weights(self._weights(), weights, self.setup.ranks)

    def prepare_checkpoint(self, path: Path, *, state: Mapping[str, Any]) -> Callable[[], None]:
        tensors: dict[str, Any] = {"model": self._model_state()}
        if self._optimizer is not None and self._optimizer.state:
            tensors[_OPTIMIZER] = self._optimizer_state(self._optimizer)
        state = self._checkpoint_state(state)
        return prepare_save(self.setup.ranks, path, tensors=tensors, state=state)

    def load_checkpoint(self, path: Path) -> dict[str, Any]:
        state = files.read_state(path)
        loaded: dict[str, Any] = {"model": self._model_state()}
        names = check_same_tensors(path, loaded["model"], prefix="model")
        if self._optimizer is not None:
            if any(name.startswith(f"{_OPTIMIZER}.") for name in names):
                loaded[_OPTIMIZER] = self._optimizer_state(self._optimizer)
            else:
                self._optimizer.state.clear()
        loaded |= load_rng_states(self.setup.ranks, path)
        load(loaded, checkpoint_id=path)
        self._set_model_state(loaded["model"])
        if self._optimizer is not None and _OPTIMIZER in loaded:
            self._set_optimizer_state(self._optimizer, loaded[_OPTIMIZER])
        use_rng_states(self.setup.ranks, loaded)
        return self._take_checkpoint_state(state)

    def _model_state(self) -> dict[str, Any]:
        """Parameters and buffers by the names that a checkpoint has for them."""
        return get_model_state_dict(self._model)

    def _set_model_state(self, state: dict[str, Any]) -> None:
        set_model_state_dict(self._model, state)

    def _optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        return get_optimizer_state_dict(self._model, optimizer)

    def _set_optimizer_state(self, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        set_optimizer_state_dict(self._model, optimizer, state)

    @property
    def data_parallel_rank(self) -> int:
        return self.setup.ranks.rank

    @property
    def data_parallel_size(self) -> int:
        return self.setup.ranks.size

    @property
    def data_parallel_group(self) -> dist.ProcessGroup:
        group = dist.group.WORLD
        if group is None:
            raise RuntimeError("the process group is closed")
        return group
