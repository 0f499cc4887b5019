"""Reads the JSON files of a model's directory."""

import json
from pathlib import Path
from typing import Any

from rollcall_runtime.models.model_source import FIELD
from rollcall_runtime.worker.errors import SpecError

MAX_BYTES = 64 << 20
"""The index of a model of 1,000,000 tensors is larger by no means."""


def read_json_object(path: Path) -> dict[str, Any]:
    """The object in `path`; SpecError if there is none, or more than MAX_BYTES."""
    try:
        with path.open("rb") as file:
            text = file.read(MAX_BYTES + 1)
        value = json.loads(_bounded(text).decode(), parse_constant=_constant)
    except RecursionError as error:
        raise SpecError(FIELD, f"cannot read {path}: it is nested too deeply") from error
    except (OSError, ValueError) as error:
        raise SpecError(FIELD, f"cannot read {path}: {error}") from error
    if not isinstance(value, dict):
        raise SpecError(FIELD, f"{path} holds no JSON object")
    return value


def _bounded(text: bytes) -> bytes:
    if len(text) > MAX_BYTES:
        raise ValueError(f"it has more than {MAX_BYTES} bytes; is it the right file?")
    return text


def _constant(name: str) -> float:
    """Infinity stands in some configurations for no limit; NaN stands for nothing."""
    if name == "NaN":
        raise ValueError("it holds NaN, which JSON does not have")
    return float(name)
