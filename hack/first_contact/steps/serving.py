"""vLLM with captured graphs: updates of a small model under load, its pauses, and tokens a second.

The measurements are those of `make bench-vllm`, which assert that each token is of the version that
it names.
"""

from __future__ import annotations

import asyncio
import importlib.util
import tempfile
from pathlib import Path

from hack.first_contact.step import Figures, SkipStepError, run

UPDATES, SECONDS = 20, 15.0  # of each window of throughput
ON_CPU = 6, 6.0  # every token is computed again, and there by the same cores


def serving(device: str) -> Figures:
    """AssertionError if a version is not served as the model itself says."""
    if importlib.util.find_spec("vllm") is None:
        raise SkipStepError("vLLM is not installed here; see --vllm-python")
    updates, seconds = ON_CPU if device == "cpu" else (UPDATES, SECONDS)
    return asyncio.run(_measure(updates, seconds))


async def _measure(updates: int, seconds: float) -> Figures:
    from hack.bench.vllm_updates import measurements  # noqa: PLC0415 - it imports vLLM

    with tempfile.TemporaryDirectory(prefix="first-contact-") as name:
        found = await measurements.on_one_server(
            Path(name) / "model", updates=updates, seconds=seconds
        )
    assert not found["lost_requests"], found
    assert not found["mixed_outputs"], found
    return found


if __name__ == "__main__":
    run(serving)
