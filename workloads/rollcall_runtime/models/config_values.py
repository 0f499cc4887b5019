"""Bounds of what a config.json says, before anything is built by it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from transformers import CONFIG_MAPPING

from rollcall_runtime.models.model_source import FIELD
from rollcall_runtime.worker.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

MOST_POSITIONS = 1 << 30
_MOST: Mapping[str, int] = {
    "vocab_size": 1 << 24,
    "hidden_size": 1 << 18,
    "intermediate_size": 1 << 20,
    "head_dim": 1 << 14,
    "num_attention_heads": 1 << 12,
    "num_key_value_heads": 1 << 12,
    "num_hidden_layers": 1 << 10,
    "max_position_embeddings": MOST_POSITIONS,
}
"""Some ten times what the largest models have. An architecture may have other names for them."""
_DTYPES = ("float32", "bfloat16", "float16", "float64", "auto")
_MOST_OTHERS = 1 << 40  # of any number; a list or a tensor of so many is refused by the system


def check_values(values: Mapping[str, Any], architecture: str, *, file: Path) -> None:
    """SpecError names a value that cannot be: a size that no model has, or an infinite number."""
    own: Mapping[str, str] = CONFIG_MAPPING[architecture].attribute_map
    for name, most in _MOST.items():
        for field in {name, own.get(name, name)}:
            given = values.get(field)
            for each in given if isinstance(given, list) else [given]:  # one for each layer
                size_of({field: each}, field, most, file=file)
    for name in ("dtype", "torch_dtype"):
        kind = values.get(name)
        if isinstance(kind, str) and kind.removeprefix("torch.") not in _DTYPES:
            raise SpecError(
                FIELD, f"{file}: {name} is {shown(kind)}; name one of {', '.join(_DTYPES)}"
            )
    rope = values.get("rope_parameters") or values.get("rope_scaling") or {}
    nested = rope if isinstance(rope, dict) else {}
    for name, value in (*values.items(), *nested.items()):
        number = isinstance(value, (int, float))
        if number and not (math.isfinite(value) and abs(value) <= _MOST_OTHERS):
            raise SpecError(FIELD, f"{file}: {name} is {shown(value)}, which no model has")


def size_of(values: Mapping[str, Any], name: str, most: int, *, file: Path) -> int | None:
    """The size of that name, from 1 to `most`; None if it is not there. SpecError otherwise."""
    value = values.get(name)
    if value is None:
        return None
    if type(value) is not int or value < 1:
        raise SpecError(FIELD, f"{file}: {name} is {shown(value)}, not a positive number")
    if value > most:
        raise SpecError(FIELD, f"{file}: {name} is {shown(value)}; at most {most} can be built")
    return value


def shown(value: object) -> str:
    """A value in a message, shortened: it may be of any length."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."


def shown_error(error: BaseException) -> str:
    """What a library says of a value: some of its errors are a name and nothing else."""
    text = str(error)
    short = f"{type(error).__name__}: {text}" if isinstance(error, LookupError) else text
    return short if len(short) <= 600 else f"{short[:600]}..."
