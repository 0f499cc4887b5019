"""`make bench-vllm`: measures updates of vLLM's weights, and recovery; the last line is JSON.

It runs in the environment that has vLLM, on this machine's CPU.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

from hack.bench.front.__main__ import measure as measure_front
from hack.bench.run_record import run_end, run_record
from hack.bench.vllm_updates import jobs, measurements
from hack.bench.vllm_updates.faults import faults
from hack.bench.vllm_updates.measurements import Figures
from hack.bench.vllm_updates.served_models import LARGE, from_directory, random_model
from hack.bench.vllm_updates.summary import summary

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Measurement = Callable[[Path], Awaitable[Figures]]


def main() -> None:
    """Measure what is asked for, and write all figures to a file, too."""
    parser = argparse.ArgumentParser(prog="python -m hack.bench.vllm_updates", description=__doc__)
    parser.add_argument("--updates", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=8, help="of pauses")
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--restarts", type=int, default=10, help="faults that end the server")
    parser.add_argument("--seconds", type=float, default=25.0, help="of a window of throughput")
    parser.add_argument("--kills", type=int, default=8, help="of rollouts on vLLM")
    parser.add_argument("--built-in-kills", type=int, default=12, help="beside which these are")
    parser.add_argument("--turns", type=int, default=3, help="of newcomers")
    parser.add_argument("--windows", type=int, default=4, help="with updates, and as many without")
    parser.add_argument("--smollm2", type=Path, default=Path(".venv-vllm/smollm2"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=[], help="names of measurements")
    parser.add_argument("--out", type=Path, default=Path("results/vllm_updates.json"))
    arguments = parser.parse_args()
    every = _measurements(arguments)
    chosen = {name: every[name] for name in arguments.only or every}
    run = run_record(sys.argv[1:])
    found = asyncio.run(_measure(chosen))
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps({"run": run | run_end(), **found}) + "\n")
    print(json.dumps(summary(found)))


def _measurements(given: argparse.Namespace) -> dict[str, Measurement]:
    def updates(*, tied: bool) -> Measurement:
        return lambda folder: measurements.updates_under_load(
            folder, updates=given.updates, tied=tied
        )

    def large() -> list[PreTrainedModel]:
        return [random_model(LARGE, seed=seed, tied=False) for seed in range(2)]

    return {
        "pauses": lambda folder: measurements.pauses(folder, large(), rounds=given.rounds),
        "pauses_smollm2": lambda folder: measurements.pauses(
            folder, from_directory(given.smollm2), rounds=given.rounds
        ),
        "throughput": lambda folder: measurements.throughput(
            folder, large(), windows=given.windows, seconds=given.seconds
        ),
        "updates_tied": updates(tied=True),
        "updates_untied": updates(tied=False),
        "bfloat16": lambda folder: measurements.bfloat16(folder, updates=given.updates),
        "identical": measurements.identical,
        "faults": lambda folder: faults(
            folder, count=given.faults, restarts=given.restarts, seed=given.seed
        ),
        "kills": lambda folder: jobs.kills(folder, vllm=given.kills, built_in=given.built_in_kills),
        "newcomers": lambda folder: jobs.newcomers(folder, turns=given.turns),
        "front": lambda folder: measure_front(
            folder, streams=64, rounds=5, burst_rounds=5, tokens=32
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
