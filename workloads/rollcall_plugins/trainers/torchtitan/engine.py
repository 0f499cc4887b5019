"""torchtitan: its models, tensor parallelism by DTensor, and FSDP2 over the data-parallel ranks.

Ranks are (replicas x) shards x tensor-parallel ranks, of which the last vary fastest. Runs on CPUs
over gloo, with torch 2.13.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from rollcall_plugins.trainers.torchtitan.decoder import build_decoder, device_mesh
from rollcall_plugins.trainers.torchtitan.decoder_outputs import DecoderOutputs
from rollcall_plugins.trainers.torchtitan.model_config import model_spec, parameter_names
from rollcall_protocol.train_settings import BUILT_IN
from rollcall_runtime.models.open_model import open_model
from rollcall_runtime.train.engines.common.compiling import compile_layers
from rollcall_runtime.train.engines.common.optimizers import build_optimizer
from rollcall_runtime.train.engines.common.placement import StatePlacement
from rollcall_runtime.train.engines.common.renamed_states import renamed_model, renamed_optimizer
from rollcall_runtime.train.engines.common.sharded_weights import ExportedWeight, put
from rollcall_runtime.train.engines.fsdp2 import Fsdp2Engine
from rollcall_runtime.train.train_engine import FIELD, WeightInfo
from rollcall_runtime.worker.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch.distributed import ProcessGroup
    from torchtitan.distributed.parallel_dims import ParallelDims

    from rollcall_runtime.train.train_engine import EngineSetup


class TorchtitanEngine(Fsdp2Engine):
    """See TrainEngine. What is not here is as in the engine fsdp2: FSDP2 shards this model, too."""

    settings_known: ClassVar[frozenset[str]] = BUILT_IN["torchtitan"]
    devices: ClassVar[frozenset[str]] = frozenset({"cpu", "cuda"})
    library: ClassVar[str] = "torchtitan"

    _mesh: ParallelDims
    _names: Mapping[str, str]  # torchtitan's of each parameter to Hugging Face's

    def __init__(self, setup: EngineSetup) -> None:
        super().__init__(setup)
        if setup.settings.offload == "parameters":
            problem = "torchtitan offloads the optimizer alone; fsdp2 offloads parameters"
            raise SpecError(f"{FIELD}.config.offload", problem)

    def initialize(self) -> None:
        setup, settings = self.setup, self.setup.settings
        if settings.threads:
            torch.set_num_threads(settings.threads)
        torch.use_deterministic_algorithms(setup.deterministic)
        if settings.compile:
            compile_layers([])  # torchtitan compiles its own; this only tries whether it can
        source = open_model(setup.model)
        spec = model_spec(
            source.config_json(head=setup.head, dtype=torch.float32),
            head=setup.head,
            sequence_parallel=settings.sequence_parallel,
        )
        weights = source.weights(head=setup.head, seed=setup.seed)
        self._names = parameter_names(spec)
        self._mesh = device_mesh(settings, setup.ranks)
        self._module = DecoderOutputs(
            build_decoder(spec, self._mesh, settings, device=setup.ranks.device),
            numbers=setup.head != "language-model",
            length_multiple=settings.tensor_parallel if settings.sequence_parallel else 1,
            temperature=setup.temperature,
        ).eval()
        for weight in self._weights():
            put(weight.tensor, weights.read(weight.info.name))
        self._parameters = list(self._module.parameters())
        if setup.optimizer is not None:
            self._optimizer = build_optimizer(setup.optimizer, self._parameters, settings)
        self._placement = StatePlacement(setup.ranks.device)

    def _weights(self) -> list[ExportedWeight]:
        state = self._model.state_dict(keep_vars=True)
        return [
            ExportedWeight(
                WeightInfo(name, state[own].dtype, tuple(state[own].shape)),
                state[own].detach(),
                None,
            )
            for own, name in self._names.items()
        ]

    def _model_state(self) -> dict[str, Any]:
        return renamed_model(get_model_state_dict(self._model), self._state_names().__getitem__)

    def _set_model_state(self, state: dict[str, Any]) -> None:
        own = renamed_model(state, _inverse(self._state_names()).__getitem__)
        set_model_state_dict(self._model, own)

    def _optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        state = get_optimizer_state_dict(self._model, optimizer)
        return renamed_optimizer(state, self._state_names().__getitem__)

    def _set_optimizer_state(self, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        own = renamed_optimizer(state, _inverse(self._state_names()).__getitem__)
        set_optimizer_state_dict(self._model, optimizer, own)

    def _state_names(self) -> dict[str, str]:
        """Of everything in a checkpoint; there a tied output layer is repeated."""
        return {"lm_head.weight": "lm_head.weight"} | dict(self._names)

    @property
    def data_parallel_rank(self) -> int:
        return self.setup.ranks.rank // self.setup.settings.tensor_parallel

    @property
    def data_parallel_size(self) -> int:
        return self.setup.ranks.size // self.setup.settings.tensor_parallel

    @property
    def data_parallel_group(self) -> ProcessGroup:
        # With one rank torchtitan gives the dimension "batch" no group that communicates.
        name = "batch" if self.data_parallel_size > 1 else "fsdp"
        group: ProcessGroup = self._mesh.get_mesh(name).get_group()
        return group


def _inverse(names: Mapping[str, str]) -> dict[str, str]:
    return {name: own for own, name in names.items()}
