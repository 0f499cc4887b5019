"""FSDP1: parameters, gradients and optimizer state sharded by FullyShardedDataParallel.

The older of torch's two implementations; `fsdp2` is the default. Works on one rank as well. The
parameters of a layer are one flat parameter that is cut anywhere, so to be sent they are gathered,
layer by layer, and ranks take turns to send whole tensors. Tried on CPUs over gloo with torch 2.13.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy
from torch.distributed.fsdp._runtime_utils import _lazy_init, _reshard
from torch.distributed.fsdp.wrap import CustomPolicy

from rollcall_protocol.train_settings import BUILT_IN
from rollcall_runtime.models.model_parts import layers
from rollcall_runtime.models.weight_loading import fill, materialise
from rollcall_runtime.train.engines.common import sharded_weights
from rollcall_runtime.train.engines.common.module_engine import ModuleEngine
from rollcall_runtime.train.engines.common.precision import compute_dtype
from rollcall_runtime.train.engines.common.renamed_states import renamed_model, renamed_optimizer
from rollcall_runtime.train.train_engine import FIELD, WeightInfo, WeightShard
from rollcall_runtime.worker.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import Tensor, nn
    from torch.distributed.device_mesh import DeviceMesh

    from rollcall_runtime.models.weight_loading import WeightReader
    from rollcall_runtime.train.engines.common.sharded_weights import ExportedWeight
    from rollcall_runtime.train.train_engine import EngineSetup

_MODEL = "model."  # before each name: what the model is to the module with its head
_CHECKPOINTED = "_checkpoint_wrapped_module."


class FsdpEngine(ModuleEngine):
    """See TrainEngine. Not usable before `initialize`."""

    settings_known: ClassVar[frozenset[str]] = BUILT_IN["fsdp"]

    _names: list[list[str]]  # of parameters: those outside of layers, then each layer's
    _info: list[WeightInfo]

    def __init__(self, setup: EngineSetup) -> None:
        super().__init__(setup)
        if setup.settings.offload == "parameters":
            # On a CPU it fails without a driver, and gathering a whole state crashes the process.
            problem = "engine fsdp keeps parameters on the device; fsdp2 offloads them"
            raise SpecError(f"{FIELD}.config.offload", problem)

    def _shard(self, module: nn.Module, weights: WeightReader) -> nn.Module:
        ranks, settings = self.setup.ranks, self.setup.settings
        model: nn.Module = module.model  # type: ignore[assignment]
        materialise(module, "cpu")  # the whole model, before layers become flat parameters
        fill(model, weights)
        units = layers(model)
        self._names = _names_by_unit(model, units)
        parameters = {n.replace(_CHECKPOINTED, ""): p for n, p in model.named_parameters()}
        self._info = [
            weight.info
            for names in self._names
            for weight in sharded_weights.exported_weights(
                {name: parameters[name] for name in names}, settings
            )
        ]
        self.gradient_scale = ranks.size  # FSDP takes the mean of the gradients
        strategy, mesh = self._layout()
        dtype = compute_dtype(settings)
        with warnings.catch_warnings():
            # FSDP advises another wrapper where each rank holds the whole model.
            warnings.filterwarnings("ignore", message=".*NO_SHARD")
            sharded = FullyShardedDataParallel(
                module,
                device_mesh=mesh,
                sharding_strategy=strategy,
                auto_wrap_policy=CustomPolicy(set(units).__contains__),
                mixed_precision=MixedPrecision(param_dtype=dtype, reduce_dtype=torch.float32)
                if dtype != torch.float32
                else None,
                device_id=ranks.device,  # else FSDP looks for an accelerator
                use_orig_params=True,
            )
        _lazy_init(sharded, sharded)  # else the first unit that is gathered becomes the root
        return sharded

    def _layout(self) -> tuple[ShardingStrategy, DeviceMesh]:
        ranks, settings = self.setup.ranks, self.setup.settings
        shards = ranks.size // settings.replicas
        if shards == 1:  # the hybrid strategies would not add up the replicas' gradients
            return ShardingStrategy.NO_SHARD, ranks.mesh(replicate=ranks.size)
        again = settings.reshard_after_forward
        if settings.replicas == 1:
            strategy = ShardingStrategy.FULL_SHARD if again else ShardingStrategy.SHARD_GRAD_OP
            return strategy, ranks.mesh(shard=shards)
        hybrid = (
            ShardingStrategy.HYBRID_SHARD if again else ShardingStrategy._HYBRID_SHARD_ZERO2  # noqa: SLF001
        )
        return hybrid, ranks.mesh(replicate=settings.replicas, shard=shards)

    @property
    def _units(self) -> list[FullyShardedDataParallel]:
        """The root, then each layer."""
        return FullyShardedDataParallel.fsdp_modules(self._module)

    def to(
        self,
        device: Literal["worker", "host"],
        *,
        model: bool = True,
        optimizer: bool = True,
        gradients: bool = True,
    ) -> None:
        """RuntimeError if there are gradients: FSDP keeps them where the parameters are."""
        if (model or gradients) and any(one.grad is not None for one in self._parameters):
            raise RuntimeError("engine fsdp cannot move gradients: step or zero_grad comes first")
        super().to(device, model=model, optimizer=optimizer, gradients=False)
        for unit in self._units:
            if unit._handle is not None:  # noqa: SLF001 - FSDP would return to what it was given
                flat = unit._handle.flat_param  # noqa: SLF001
                flat._local_shard = flat.data  # noqa: SLF001

    def _backward(self, loss: Tensor) -> None:
        super()._backward(loss)
        for unit in self._units:
            handle = unit._handle  # noqa: SLF001 - FSDP does this only for what is trained
            if handle is not None and not handle.flat_param.requires_grad:
                _reshard(unit, handle, handle.uses_sharded_strategy)

    def _clip_gradients(self, max_norm: float) -> float:
        self._placement.expect_on_worker("model", "gradients")
        return float(self._module.clip_grad_norm_(max_norm))  # type: ignore[operator]

    def _free_gathered(self) -> None:
        for unit in self._units:
            handle = unit._handle  # noqa: SLF001 - FSDP frees after a backward pass alone
            if handle is not None and handle.uses_sharded_strategy:
                _reshard(unit, handle, True)

    def _model_state(self) -> dict[str, Any]:
        # FSDP gives and takes the state of the whole module alone.
        state = get_model_state_dict(self._module, options=self._state_options)
        return renamed_model(state, _without_module)

    def _set_model_state(self, state: dict[str, Any]) -> None:
        own = renamed_model(state, _of_module)
        set_model_state_dict(self._module, own, options=self._state_options)

    def _optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        state = get_optimizer_state_dict(self._module, optimizer)
        return renamed_optimizer(state, _without_module)

    def _set_optimizer_state(self, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        own = renamed_optimizer(state, _of_module)
        set_optimizer_state_dict(self._module, optimizer, own)

    def weight_info(self) -> list[WeightInfo]:
        return list(self._info)

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        for weights in self._gathered_units():
            for name, tensor in sharded_weights.whole_weights(weights):
                yield name, tensor.clone()  # what was gathered is freed as the iterator advances

    def weight_shards(self) -> Iterator[WeightShard]:
        ranks = self.setup.ranks
        whole = zip(self._info, self.named_weights(), strict=True)
        for number, (info, (_, tensor)) in enumerate(whole):
            if number % ranks.size == ranks.rank:
                yield WeightShard(info, 0, tensor)

    def load_weights(self, weights: Mapping[str, Tensor] | None) -> None:
        sharded_weights.expect_weights(self._info, weights, self.setup.ranks)
        for unit in self._gathered_units(change=True):
            sharded_weights.replace_weights(unit, weights, self.setup.ranks)

    def _gathered_units(self, *, change: bool = False) -> Iterator[list[ExportedWeight]]:
        """Collective. The weights of one unit after the other, whole until the iterator advances.

        `change`: what is written to them is kept.
        """
        self._free_gathered()
        for unit, names in zip(self._units, self._names, strict=True):
            with FullyShardedDataParallel.summon_full_params(unit, recurse=False, writeback=change):
                state = {name: self._model.get_parameter(name) for name in names}
                yield sharded_weights.exported_weights(state, self.setup.settings)


def _without_module(name: str) -> str:
    return name.removeprefix(_MODEL)


def _of_module(name: str) -> str:
    return _MODEL + name


def _names_by_unit(model: nn.Module, units: list[nn.Module]) -> list[list[str]]:
    """Names of parameters in the order of FSDP's units: the root has what no layer has."""
    unit_of = {id(p): number for number, unit in enumerate(units, 1) for p in unit.parameters()}
    names: list[list[str]] = [[] for _ in range(len(units) + 1)]
    for name, parameter in model.named_parameters():
        names[unit_of.get(id(parameter), 0)].append(name.replace(_CHECKPOINTED, ""))
    return names
