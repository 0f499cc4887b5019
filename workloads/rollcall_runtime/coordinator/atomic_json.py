"""Writes JSON files that other processes read: whole, either the former content or the new."""

import json
from pathlib import Path
from typing import Any

from rollcall_protocol.wire.json_codec import encode


def write_json(path: Path, value: Any) -> None:
    """Write a message of the protocol to `path`, and make its folder. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".tmp")
    draft.write_text(json.dumps(encode(value), separators=(",", ":")), encoding="utf-8")
    draft.replace(path)
