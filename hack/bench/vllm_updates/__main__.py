"""`make bench-vllm`: measures updates of vLLM's weights; the last line is JSON.

It runs in the environment that has vLLM, on this machine's CPU.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from hack.bench.vllm_updates import measurements
from hack.bench.vllm_updates.measurements import Figures
from hack.bench.vllm_updates.summary import summary

Measurement = Callable[[Path], Awaitable[Figures]]


def main() -> None:
    """Measure what is asked for, and write all figures to a file, too."""
    parser = argparse.ArgumentParser(prog="python -m hack.bench.vllm_updates", description=__doc__)
    parser.add_argument("--updates", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=8, help="of pauses")
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--restarts", type=int, default=10, help="faults that end the server")
    parser.add_argument("--seconds", type=float, default=25.0, help="of a window of throughput")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=[], help="names of measurements")
    parser.add_argument("--out", type=Path, default=Path("results/vllm_updates.json"))
    arguments = parser.parse_args()
    every = _measurements(arguments)
    chosen = {name: every[name] for name in arguments.only or every}
    found = asyncio.run(_measure(chosen))
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(summary(found)))


def _measurements(given: argparse.Namespace) -> dict[str, Measurement]:
    def updates(*, tied: bool) -> Measurement:
        return lambda folder: measurements.updates_under_load(
            folder, updates=given.updates, tied=tied
        )

    return {
        "pauses": lambda folder: measurements.pauses(folder, rounds=given.rounds),
        "throughput": lambda folder: measurements.throughput(
            folder, rounds=2, seconds=given.seconds
        ),
        "updates_tied": updates(tied=True),
        "updates_untied": updates(tied=False),
        "identical": measurements.identical,
        "faults": lambda folder: measurements.faults(
            folder, count=given.faults, restarts=given.restarts, seed=given.seed
        ),
    }


async def _measure(chosen: dict[str, Measurement]) -> dict[str, Figures]:
    found = {}
    for name, measure in chosen.items():
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="rollcall-bench-") as folder:
            found[name] = await measure(Path(folder) / name)
        found[name]["seconds"] = round(time.monotonic() - began, 1)
        print(f"{name}: {json.dumps(found[name])}", flush=True)
    return found


if __name__ == "__main__":
    main()
