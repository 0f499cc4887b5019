"""The messages between a worker and its reward process.

The process sends one answer for each response of a request.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rollcall_protocol.job_config import RewardPart

MAX_ANSWER = 1 << 16  # bytes


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
    prompt: Sequence[int],
    samples: Sequence[tuple[Sequence[int], float]],
    row: Mapping[str, Any],
    *,
    stop: bool,
) -> dict[str, Any]:
    """Ask for the rewards of samples of one prompt, in this order; `stop`: up to an error.

    A sample is a response, and what its environment's steps gave.
    """
    return {"prompt": prompt, "samples": samples, "row": row, "stop": stop}
