"""`make bench-llm`: whether SmolLM2 learns the tasks of examples/smollm. The last line is JSON.

`python -m hack.bench.language_model [--tasks ...] [--seeds ...] [--steps N] [--no-sync]`, in the
environment that has vLLM, on this machine's CPU. Each run is a job of processes: a trainer and one
rollout, with the settings of the task's manifest. Rewards are those of the rollout's own samples.
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from hack.bench.language_model.learning import Learning, verdict
from hack.bench.language_model.learning_job import TASKS, learn
from hack.bench.run_record import ROOT, finish, run_record

MODEL = ROOT / ".venv-vllm" / "smollm2"


def main() -> None:
    """One job after another, and what became of the rewards."""
    parser = argparse.ArgumentParser(prog="python -m hack.bench.language_model")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=[*TASKS])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3], help="data.seed of jobs")
    parser.add_argument("--steps", type=int, help="the manifest's maxSteps unless given")
    parser.add_argument("--no-sync", action="store_true", help="weightSync.enabled: false")
    parser.add_argument("--model", type=Path, default=MODEL, help="folder; make bench-llm makes it")
    arguments = parser.parse_args()
    if not (arguments.model / "config.json").is_file():
        parser.error(f"--model: {arguments.model} holds no model; make bench-llm makes one")
    model = arguments.model
    shown = model.relative_to(ROOT) if model.is_relative_to(ROOT) else model.name
    given = vars(arguments) | {"model": shown}
    run = run_record({key: str(value) for key, value in given.items()})
    found: list[Learning] = []
    for task in arguments.tasks:
        for seed in arguments.seeds:
            learning = asyncio.run(
                learn(
                    task,
                    seed=seed,
                    model=arguments.model,
                    sync=not arguments.no_sync,
                    steps=arguments.steps,
                )
            )
            print(task, seed, learning.figures(), flush=True)
            found.append(learning)
    finish("language-model", run, verdict(found))


if __name__ == "__main__":
    main()
