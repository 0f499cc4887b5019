"""Low-rank adapters of linear layers (Hu et al. 2022, arXiv:2106.09685), made by peft."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from rollcall_runtime.train.train_engine import FIELD
from rollcall_runtime.worker.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor, nn

    from rollcall_protocol.train_settings import EngineSettings

_BASE, _DOWN, _UP = "base_layer.weight", "lora_A.default.weight", "lora_B.default.weight"


@dataclass(frozen=True, slots=True)
class LowRankAdapter:
    """What is added to a weight [out, in]: scale * `up` [out, rank] @ `down` [rank, in]."""

    up: Tensor
    down: Tensor
    scale: float


def add_adapters(model: nn.Module, settings: EngineSettings, *, seed: int) -> None:
    """Put adapters beside `lora_targets` and let nothing else be trained.

    The first values are those of `seed` on every rank. SpecError without peft, or if no layer of
    the model has one of these names.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model  # noqa: PLC0415 - optional
    except ImportError as error:
        problem = f"low-rank adapters need the package peft: {error}"
        raise SpecError(f"{FIELD}.config.loraRank", problem) from error
    targets = [name.strip() for name in settings.lora_targets.split(",") if name.strip()]
    config = LoraConfig(
        r=settings.lora_rank,
        lora_alpha=settings.lora_alpha,  # type: ignore[arg-type]  # peft divides by it alone
        target_modules=targets,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            inject_adapter_in_model(config, model)
        except ValueError as error:
            raise SpecError(f"{FIELD}.config.loraTargets", str(error)) from error


def exported_name(name: str) -> str:
    """The name that a parameter has in the model without adapters; "" for one of an adapter."""
    return "" if ".lora_" in name else name.replace(".base_layer.", ".")


def adapter_of(
    name: str, state: Mapping[str, Tensor], settings: EngineSettings
) -> LowRankAdapter | None:
    """The adapter beside the weight that `state` has under `name`; None without one."""
    if not name.endswith(_BASE):
        return None
    module = name.removesuffix(_BASE)
    scale = settings.lora_alpha / settings.lora_rank
    return LowRankAdapter(state[module + _UP], state[module + _DOWN], scale)
