"""What FSDP1 and FSDP2 share: one PyTorch module, sharded over ranks that compute different rows.

How it is sharded is the derived engine's, and how weights leave it if it shards by no DTensors.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
import torch.distributed as dist
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing,
)
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from rollcall_protocol.train_settings import ADAPTER, KERNELS_OF_PACKED_ROWS
from rollcall_runtime.models import varlen_attention
from rollcall_runtime.models.model_parts import (
    attention_heads,
    check_parts,
    layers,
    masks_packed_rows,
    output_layer,
    prepare_row_layouts,
)
from rollcall_runtime.models.open_model import open_model
from rollcall_runtime.train.checkpoint import files
from rollcall_runtime.train.checkpoint.distributed_save import (
    check_same_tensors,
    load_rng_states,
    load_tensors,
    prepare_save,
    use_rng_states,
)
from rollcall_runtime.train.engines.common import sharded_weights
from rollcall_runtime.train.engines.common.compiling import compile_layers
from rollcall_runtime.train.engines.common.context_parallel import ContextParallelRanks
from rollcall_runtime.train.engines.common.lora import AdaptedWeights, add_adapters
from rollcall_runtime.train.engines.common.microbatched_engine import MicrobatchedEngine
from rollcall_runtime.train.engines.common.model_heads import model_output, with_head
from rollcall_runtime.train.engines.common.optimizers import build_optimizer
from rollcall_runtime.train.engines.common.placement import StatePlacement
from rollcall_runtime.train.train_engine import FIELD
from rollcall_runtime.worker.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from torch import Tensor, nn

    from rollcall_runtime.models.model_source import Head
    from rollcall_runtime.models.weight_loading import WeightReader
    from rollcall_runtime.train.engines.common.sharded_weights import ExportedWeight
    from rollcall_runtime.train.train_batch import TrainBatch
    from rollcall_runtime.train.train_engine import EngineSetup, WeightInfo, WeightShard
    from rollcall_runtime.train.train_loss import ModelOutput

log = logging.getLogger(__name__)

_OPTIMIZER = "optimizer"


class ModuleEngine(MicrobatchedEngine):
    """See TrainEngine. Derived engines may read each other's checkpoints.

    `_module` is the model with its head, sharded; `_parameters` are those that are trained.
    """

    devices: ClassVar[frozenset[str]] = frozenset({"cpu", "cuda", "npu"})
    heads: ClassVar[frozenset[Head]] = frozenset(
        {"language-model", "value", "sequence-classification"}
    )

    _module: nn.Module
    _parameters: list[nn.Parameter]
    _placement: StatePlacement
    _sharing: ContextParallelRanks | None = None
    _data_parallel_group: dist.ProcessGroup | None = None

    def __init__(self, setup: EngineSetup) -> None:
        super().__init__(setup)
        if setup.own_settings:
            key = min(setup.own_settings)
            raise SpecError(f"{FIELD}.config.{key}", "this engine has no such setting")

    @abstractmethod
    def _shard(self, module: nn.Module, weights: WeightReader) -> nn.Module:
        """Collective. Shard `module` in its place, or in a wrapper, on this worker's device.

        Its parameters are empty, and get the values of `weights`, which has the names of
        `module.model`. Sets `gradient_scale`.
        """

    @abstractmethod
    def _free_gathered(self) -> None:
        """Free parameters that are gathered."""

    def initialize(self) -> None:
        settings = self.setup.settings
        if settings.threads:
            torch.set_num_threads(settings.threads)
        torch.use_deterministic_algorithms(self.setup.deterministic)
        source, head, seed = open_model(self.setup.model), self.setup.head, self.setup.seed
        model = source.build_empty(head=head)
        check_parts(model, head=head, vocabulary=source.vocabulary)
        weights = source.weights(head=head, seed=seed)
        if settings.packing:
            self._choose_attention(model)
        if settings.context_parallel > 1:
            self._share_positions(model)
        if settings.lora_rank:
            add_adapters(model, settings)
            weights = AdaptedWeights(weights, model, seed=seed)
            if head != "language-model":  # the head itself is new
                output_layer(model).requires_grad_()
        if settings.activation_checkpointing == "full":
            units = set(layers(model))
            apply_activation_checkpointing(model, check_fn=units.__contains__)
        if settings.compile:
            compile_layers(layers(model))
        module = with_head(
            model,
            head,
            logprob_chunk=settings.logprob_chunk,
            temperature=self.setup.temperature,
        )
        self._module = self._shard(module.eval(), weights)
        self._parameters = [p for p in self._module.parameters() if p.requires_grad]
        if self.setup.optimizer is not None:
            self._optimizer = build_optimizer(self.setup.optimizer, self._parameters, settings)
        self._placement = StatePlacement(self.setup.ranks.device)

    def _choose_attention(self, model: nn.Module) -> None:
        """Say how packed rows are attended to; SpecError if that is not what is asked for."""
        settings, of_layouts = self.setup.settings, prepare_row_layouts(model)
        if not of_layouts and not masks_packed_rows(model):
            problem = f"was not tested with the architecture of {self.setup.model}; set it to false"
            raise SpecError(f"{FIELD}.config.packing", problem)
        why = varlen_attention.lack(
            settings.attention,
            device=self.setup.ranks.device.type,
            two_byte_numbers=settings.precision == "bf16",
        )
        how = f"one sequence after the other: {why}" if why else "all sequences at once"
        if not of_layouts:
            why = f"it was not tested with the architecture of {self.setup.model}"
            how = f"with a mask: {why}"
        if why and settings.attention in KERNELS_OF_PACKED_ROWS:
            problem = f"{settings.attention} cannot be had here: {why}; set it to auto"
            raise SpecError(f"{FIELD}.config.attention", problem)
        log.info("attention of packed rows computes %s", how)

    def _share_positions(self, model: nn.Module) -> None:
        """Collective. Have `context_parallel` successive ranks compute the same rows together."""
        size = self.setup.settings.context_parallel
        field = f"{FIELD}.config.contextParallel"
        if not prepare_row_layouts(model):
            problem = f"was not tested with the architecture of {self.setup.model}; set it to 1"
            raise SpecError(field, problem)
        heads = attention_heads(model)
        if heads % size:
            raise SpecError(field, f"{size} ranks cannot divide the model's {heads} heads evenly")
        ranks = range(self.setup.ranks.size)
        sharing = [ranks[first : first + size] for first in ranks[::size]]
        self._sharing = ContextParallelRanks(self.setup.ranks.group(*sharing))
        others = [ranks[place::size] for place in range(size)]
        self._data_parallel_group = self.setup.ranks.group(*others)

    @property
    def _model(self) -> nn.Module:
        model: nn.Module = self._module.model  # type: ignore[assignment]
        return model

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
        self._free_gathered()
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
            settings=self.setup.settings,
            entropy=entropy,
            ranks=self._sharing,
        )

    def forward(self, batch: TrainBatch, *, entropy: bool = False) -> ModelOutput:
        output = super().forward(batch, entropy=entropy)
        self._free_gathered()  # else these parameters would outlive the next optimizer step
        return output

    def zero_grad(self) -> None:
        super().zero_grad()
        self._placement.forget_gradients()

    def _apply_gradients(self, optimizer: torch.optim.Optimizer) -> None:
        offloaded = self.setup.settings.offload == "optimizer"
        if offloaded:
            self._placement.move("worker", optimizer=optimizer)
        self._placement.expect_on_worker("optimizer")
        optimizer.step()
        if offloaded:
            self._placement.move("host", optimizer=optimizer)

    def prepare_checkpoint(self, path: Path, *, state: Mapping[str, Any]) -> Callable[[], None]:
        tensors: dict[str, Any] = {"model": self._model_state()}
        if self._optimizer is not None and self._any_rank_has_stepped(self._optimizer):
            tensors[_OPTIMIZER] = self._optimizer_state(self._optimizer)
        state = self._checkpoint_state(state)
        return prepare_save(self.setup.ranks, path, tensors=tensors, state=state)

    def _any_rank_has_stepped(self, optimizer: torch.optim.Optimizer) -> bool:
        """Collective: a rank whose shards are all of what is not trained has no state itself."""
        return self.setup.ranks.any(bool(optimizer.state))

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
        load_tensors(self.setup.ranks, loaded, path)
        self._set_model_state(loaded["model"])
        if self._optimizer is not None and _OPTIMIZER in loaded:
            self._set_optimizer_state(self._optimizer, loaded[_OPTIMIZER])
        use_rng_states(self.setup.ranks, loaded)
        return self._take_checkpoint_state(state)

    def _model_state(self) -> dict[str, Any]:
        """Parameters and buffers by the names that a checkpoint has for them: the source's."""
        return get_model_state_dict(self._model, options=self._state_options)

    def _set_model_state(self, state: dict[str, Any]) -> None:
        set_model_state_dict(self._model, state, options=self._state_options)

    @property
    def _state_options(self) -> StateDictOptions:
        """Where adapters alone leave the trainer nothing else of the model ever changes."""
        alone = self.setup.settings.lora_export == ADAPTER
        return StateDictOptions(ignore_frozen_params=alone, strict=not alone)

    def _optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        return get_optimizer_state_dict(self._model, optimizer)

    def _set_optimizer_state(self, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        set_optimizer_state_dict(self._model, optimizer, state)

    @property
    def data_parallel_rank(self) -> int:
        return self.setup.ranks.rank // self.setup.settings.context_parallel

    @property
    def data_parallel_size(self) -> int:
        return self.setup.ranks.size // self.setup.settings.context_parallel

    @property
    def data_parallel_group(self) -> dist.ProcessGroup:
        group = self._data_parallel_group or dist.group.WORLD
        if group is None:
            raise RuntimeError("the process group is closed")
        return group

    def _weights(self) -> list[ExportedWeight]:
        """What leaves and enters: parameters that are whole on every rank, or DTensors."""
        state = self._model.state_dict(keep_vars=True)
        return sharded_weights.exported_weights(state, self.setup.settings)

    def weight_info(self) -> list[WeightInfo]:
        return [weight.info for weight in self._weights()]

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        return sharded_weights.whole_weights(self._weights())

    def weight_shards(self) -> Iterator[WeightShard]:
        return sharded_weights.own_shards(self._weights(), rank=self.setup.ranks.rank)

    def load_weights(self, weights: Mapping[str, Tensor] | None) -> None:
        own = self._weights()
        sharded_weights.expect_weights([one.info for one in own], weights, self.setup.ranks)
        sharded_weights.replace_weights(own, weights, self.setup.ranks)
