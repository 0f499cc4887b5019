"""The messages between a rollout and its reward process: JSON behind its length in 4 bytes.

The process sends what `started` or `refused` makes once, then for each request one answer for each
response. No pickle: what the user's code makes is not to be trusted with more than its own reward.
"""

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rollcall_protocol.job_config import RewardPart

LENGTH = struct.Struct("!I")
MAX_ANSWER = 1 << 16  # bytes


def pack(message: Mapping[str, Any]) -> bytes:
    """A message with its length."""
    body = json.dumps(message).encode()
    return LENGTH.pack(len(body)) + body


def named(
    function: str,
    config: Mapping[str, Any],
    parts: Sequence[RewardPart],
    directory: Path | None,
) -> str:
    """What the process is to call; `directory` has the model's tokenizer."""
    value = {"function": function, "config": dict(config), "parts": [asdict(p) for p in parts]}
    return json.dumps({**value, "directory": str(directory or "")})


def request(
    prompt: Sequence[int], responses: Sequence[Sequence[int]], row: Mapping[str, Any], *, stop: bool
) -> bytes:
    """Ask for the rewards of responses to one prompt, in this order; `stop`: up to an error."""
    return pack({"prompt": prompt, "responses": responses, "row": row, "stop": stop})
