"""Reads the JSON files of a model's directory."""

import json
from pathlib import Path
from typing import Any

from rollcall_runtime.models.model_source import FIELD
from rollcall_runtime.worker.errors import SpecError


def read_json_object(path: Path) -> dict[str, Any]:
    """The object in `path`; SpecError if there is none."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SpecError(FIELD, f"cannot read {path}: {error}") from error
    if not isinstance(value, dict):
        raise SpecError(FIELD, f"{path} holds no JSON object")
    return value
