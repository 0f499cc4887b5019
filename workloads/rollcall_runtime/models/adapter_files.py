"""Low-rank adapters as PEFT's files hold them, which vLLM reads too: names, shapes, a directory."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from safetensors.torch import save

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor

    from rollcall_protocol.adapter_config import AdapterConfig

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
_MODEL = "base_model.model."  # before the names of the model's own modules
_DOWN, _UP = "lora_A", "lora_B"


def down_name(module: str) -> str:
    """The matrix [rank, in] beside the layer `module` of the model."""
    return f"{_MODEL}{module}.{_DOWN}.weight"


def up_name(module: str) -> str:
    """The matrix [out, rank] beside the layer `module` of the model."""
    return f"{_MODEL}{module}.{_UP}.weight"


def adapter_shapes(
    model: Mapping[str, tuple[int, ...]], config: AdapterConfig
) -> dict[str, tuple[int, ...]]:
    """The tensors of an adapter for a model whose own have the shapes `model`, by PEFT's names."""
    found: dict[str, tuple[int, ...]] = {}
    for name, shape in model.items():
        module = name.removesuffix(".weight")
        if len(shape) == 2 and any(f".{module}".endswith(f".{one}") for one in config.targets):
            found[down_name(module)] = (config.rank, shape[1])
            found[up_name(module)] = (shape[0], config.rank)
    return found


def write_adapter(
    folder: Path, tensors: Mapping[str, Tensor], config: AdapterConfig, *, base: str
) -> None:
    """Write into `folder` what `PeftModel.from_pretrained` reads; `base` names the model.

    OSError if that cannot be written.
    """
    values = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": config.rank,
        "lora_alpha": int(config.alpha) if config.alpha.is_integer() else config.alpha,
        "target_modules": list(config.targets),
        "bias": "none",
        "inference_mode": True,
    }
    # Not save_file, whose errors are not OSErrors.
    (folder / WEIGHTS_FILE).write_bytes(save(dict(tensors), metadata={"format": "pt"}))
    (folder / CONFIG_FILE).write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
