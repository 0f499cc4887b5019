"""Rollcall's weight-transfer engine with faults, and with vLLM's own update beside it.

It runs in vLLM's processes, in the place of Rollcall's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm
from vllm.model_executor.model_loader.reload import layerwise

from hack.bench.vllm_updates.fault_file import make
from rollcall_plugins.inference.vllm.in_server import BACKEND, weight_transfer
from rollcall_plugins.inference.vllm.in_server.shadow_model import ShadowModel
from rollcall_plugins.inference.vllm.in_server.staged_file import StagedWeights, read

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

OWN_UPDATE = "own"


def register() -> None:
    """Called by vLLM in each of its processes (entry point group `vllm.general_plugins`)."""
    WeightTransferEngineFactory._registry.pop(BACKEND, None)
    WeightTransferEngineFactory.register_engine(BACKEND, __name__, "FaultyTransfer")


class FaultyTransfer(weight_transfer.StagedWeightTransfer):
    """Fails where it is asked to; the action `own` is vLLM's update in place, of a staged file."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        replaced: Any = weight_transfer
        replaced.read, replaced.ShadowModel = _read, _FaultyShadow
        self._own_update = False

    def receive_weights(self, update_info: weight_transfer.UpdateInfo) -> None:
        make("call", update_info.action)
        if update_info.action != OWN_UPDATE:
            super().receive_weights(update_info)
            return
        self._own_update = True
        model: Any = self.model
        layerwise.initialize_layerwise_reload(model)
        model.load_weights(iter(read(update_info.path).tensors))

    def finish_weight_update(self) -> None:
        make("finish", 0)
        if not self._own_update:
            super().finish_weight_update()
            return
        self._own_update = False
        model: Any = self.model
        layerwise.finalize_layerwise_processing(model, self.model_config)
        if model.config.tie_word_embeddings:  # which vLLM 0.32 forgets on CPUs
            dispatch_cpu_unquantized_gemm(model.lm_head, remove_weight=False)


class _FaultyShadow(ShadowModel):
    def commit(self) -> None:
        assert self._copied is not None
        self._copied._copies = _Interrupted("copy", self._copied._copies)
        super().commit()


class _Interrupted(list[Any]):
    """A list that a fault may end early, or as it ends."""

    def __init__(self, phase: str, entries: Any) -> None:
        super().__init__(entries)
        self._phase = phase

    def __iter__(self) -> Iterator[Any]:
        for number, entry in enumerate(super().__iter__()):
            make(self._phase, number)
            yield entry
        make(self._phase, len(self))


def _read(path: str, device: torch.device) -> StagedWeights:
    make("read", 0)
    staged = read(path, device)
    tensors: Any = _Interrupted("load", staged.tensors)
    return StagedWeights(staged.version, tensors)
