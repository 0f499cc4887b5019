"""Reads JSON files that others wrote, such as those of a model's directory."""

import json
from pathlib import Path
from typing import Any

from rollcall_runtime.models.model_source import FIELD
from rollcall_runtime.worker.errors import SpecError

MAX_BYTES = 64 << 20
"""The index of a model of 1,000,000 tensors is larger by no means."""


def read_json_object(path: Path, *, field: str = FIELD, most: int = MAX_BYTES) -> dict[str, Any]:
    """The object in `path`; SpecError at `field` if there is none, or more than `most` bytes."""
    try:
        with path.open("rb") as file:
            text = _bounded(file.read(most + 1), most)
        value = json.loads(text.decode(), parse_constant=_constant)
    except RecursionError as error:
        raise SpecError(field, f"cannot read {path}: it is nested too deeply") from error
    except (OSError, ValueError) as error:
        raise SpecError(field, f"cannot read {path}: {error}") from error
    if not isinstance(value, dict):
        raise SpecError(field, f"{path} holds no JSON object")
    return value


def _bounded(text: bytes, most: int) -> bytes:
    if len(text) > most:
        raise ValueError(f"it has more than {most} bytes; is it the right file?")
    return text


def _constant(name: str) -> float:
    """Infinity stands in some configurations for no limit; NaN stands for nothing."""
    if name == "NaN":
        raise ValueError("it holds NaN, which JSON does not have")
    return float(name)
