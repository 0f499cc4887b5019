"""Low-rank adapters of linear layers (Hu et al. 2022, arXiv:2106.09685), made by peft."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING
from zlib import crc32

import torch
from torch import nn

from rollcall_protocol.train_settings import lora_targets
from rollcall_runtime.models.adapter_files import down_name, up_name
from rollcall_runtime.models.weight_loading import WeightReader
from rollcall_runtime.train.train_engine import FIELD
from rollcall_runtime.worker.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from rollcall_protocol.train_settings import EngineSettings
    from rollcall_protocol.wire.weight_manifest import RowRange

_BASE, _DOWN, _UP = "base_layer.weight", "lora_A.default.weight", "lora_B.default.weight"


@dataclass(frozen=True, slots=True)
class LowRankAdapter:
    """What is added to a weight [out, in]: scale * `up` [out, rank] @ `down` [rank, in]."""

    up: Tensor
    down: Tensor
    scale: float


class AdaptedWeights(WeightReader):
    """The tensors of a model and the first values of its adapters, which add nothing.

    Both by the names of `model`, to which `add_adapters` has added them. As in the paper `up` is 0
    and `down` is random, of peft's distribution; the values follow from `seed` and the name.
    """

    def __init__(self, weights: WeightReader, model: nn.Module, *, seed: int) -> None:
        self._weights, self._seed = weights, seed
        self._adapters: dict[str, tuple[int, ...]] = {}
        self._names: dict[str, str] = {}  # of the model, to those of `weights`
        for name, tensor in model.state_dict().items():
            if not exported_name(name):
                self._adapters[name] = tuple(tensor.shape)
            elif exported_name(name) in weights.shapes:
                self._names[name] = exported_name(name)

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        model = {name: self._weights.shapes[source] for name, source in self._names.items()}
        return model | self._adapters

    def read(self, name: str, rows: RowRange | None = None) -> Tensor:
        if name in self._names:
            return self._weights.read(self._names[name], rows)
        whole = torch.zeros(self._adapters[name])
        if name.endswith(_DOWN):
            generator = torch.Generator().manual_seed(self._seed + crc32(name.encode()))
            nn.init.kaiming_uniform_(whole, a=math.sqrt(5), generator=generator)
        return whole if rows is None else whole[slice(*rows)]


def add_adapters(model: nn.Module, settings: EngineSettings) -> None:
    """Put adapters beside `lora_targets` and let nothing else be trained.

    Their values are as those of the model: without any, if it was built empty. SpecError without
    peft, if no layer of the model has one of these names, or if such a layer's weight is another
    one's too: what is added to it would leave the trainer under neither name.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model  # noqa: PLC0415 - optional
    except ImportError as error:
        problem = f"low-rank adapters need the package peft: {error}"
        raise SpecError(f"{FIELD}.config.loraRank", problem) from error
    _refuse_shared_weights(model, settings)
    config = LoraConfig(
        r=settings.lora_rank,
        lora_alpha=settings.lora_alpha,  # type: ignore[arg-type]  # peft divides by it alone
        target_modules=list(lora_targets(settings.lora_targets)),
    )
    try:
        with torch.random.fork_rng(devices=[]):
            inject_adapter_in_model(config, model)
    except ValueError as error:
        raise SpecError(f"{FIELD}.config.loraTargets", str(error)) from error
    if any(".lora_embedding_" in name for name, _ in model.named_parameters()):
        problem = f"{settings.lora_targets!r} names embeddings; only linear layers get adapters"
        raise SpecError(f"{FIELD}.config.loraTargets", problem)


def _refuse_shared_weights(model: nn.Module, settings: EngineSettings) -> None:
    layers: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        layers.setdefault(id(parameter), []).append(name.removesuffix(".weight"))
    targets = tuple(f".{target}" for target in lora_targets(settings.lora_targets))
    for same in layers.values():
        named = [layer for layer in same if f".{layer}".endswith(targets)]
        if named and len(same) > 1:
            problem = (
                f"{settings.lora_targets!r} names {named[0]}, but {' and '.join(same)} are one "
                "weight (tied embeddings), and an adapter would change one of them alone; leave "
                "it out"
            )
            raise SpecError(f"{FIELD}.config.loraTargets", problem)


def exported_name(name: str) -> str:
    """The name that a parameter has in the model without adapters; "" for one of an adapter."""
    return "" if ".lora_" in name else name.replace(".base_layer.", ".")


def adapter_name(name: str) -> str:
    """The name in PEFT's files of an adapter's parameter; "" for one of the model's own."""
    for own, named in ((_DOWN, down_name), (_UP, up_name)):
        if name.endswith(f".{own}"):
            return named(name.removesuffix(f".{own}"))
    return ""


def adapter_of(
    name: str, state: Mapping[str, Tensor], settings: EngineSettings
) -> LowRankAdapter | None:
    """The adapter beside the weight that `state` has under `name`; None without one."""
    if not name.endswith(_BASE):
        return None
    module = name.removesuffix(_BASE)
    scale = settings.lora_alpha / settings.lora_rank
    return LowRankAdapter(state[module + _UP], state[module + _DOWN], scale)
