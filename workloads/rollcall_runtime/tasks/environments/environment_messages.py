"""The messages between a rollout and its environment process, which handles many samples at once.

Each request has the number of a call, which its answer repeats; ENDED has no answer.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rollcall_protocol.job_config import EnvironmentConfig

MAX_ANSWER = 2**20  # bytes
AT_ONCE = 64  # calls; others wait, and their time limits begin later
RESET, STEP, ENDED = "reset", "step", "ended"


def named(config: EnvironmentConfig, directory: Path | None) -> str:
    """What the process is to load; `directory` has the model's tokenizer."""
    value = {"function": config.function, "tools": config.tools, "config": config.config}
    return json.dumps({**value, "directory": str(directory or "")})


def reset(
    call: int, sample: int, *, prompt: Sequence[int], row: Mapping[str, Any], seed: int
) -> dict[str, Any]:
    """Make an environment for a sample, in the place of one that it has, and begin."""
    values = {"prompt": list(prompt), "row": dict(row), "seed": seed}
    return {"do": RESET, "call": call, "sample": sample, **values}


def step(call: int, sample: int, *, response: Sequence[int]) -> dict[str, Any]:
    """Have the sample's environment answer a turn."""
    return {"do": STEP, "call": call, "sample": sample, "response": list(response)}


def ended(sample: int) -> dict[str, Any]:
    """Forget the sample's environment."""
    return {"do": ENDED, "sample": sample}
