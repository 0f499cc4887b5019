"""What a trainer of two ranks waits for weight sync in a whole job. The last line is JSON.

`python -m hack.bench.sync_wait [--mebibytes 64|512] [--rollouts N] [--pairs N]`: fsdp2 trains the
built-in decoder and sends it over gloo, with `weightSync.blocking` and without, in jobs that
alternate. A step's visible wait is the copy of the weights and what training waits at the step's
end for a version to be published. Nothing else should run meanwhile. It fails if a rollout did not
receive every version, and exits with 1 below the goal of 15.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from hack.bench.local_job import rounded, serving
from hack.bench.run_record import finish, run_record
from rollcall_protocol.job_config import EngineRef
from rollcall_runtime.models.tiny_decoder import TinyConfig, TinyDecoder
from tests.process.harness import ENDLESS, FAST, LocalJob
from tests.unit.rollcall_runtime.jobs import job_config

MODELS = {
    64: TinyConfig(width=528, heads=8, layers=5),
    512: TinyConfig(width=1056, heads=8, layers=10),
}
"""By MiB of weights in fp32."""
GOAL = 15.0
WARM_UP = 5  # steps: until then buffers are made
SNAPSHOT, POLICY = "param_sync_snapshot_seconds", "wait_for_policy_seconds"
MEANS = (
    SNAPSHOT,
    POLICY,
    "step_seconds",
    "train_seconds",
    "wait_for_batch_seconds",
    "param_sync_stage_seconds",
    "param_sync_commit_seconds",
)
RECEIVED, VERSION = "param_sync_bytes_total", "weight_version"


def write_model(folder: Path, mebibytes: int) -> int:
    """A directory with a model of that size; returns the bytes of its weights."""
    config = MODELS[mebibytes]
    state = TinyDecoder.seeded(config, seed=0).state_dict()
    folder.mkdir()
    save_file(state, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"kind": "tiny", **asdict(config)}))
    return sum(tensor.nbytes for tensor in state.values())


async def run_job(
    model: Path, weights: int, arguments: argparse.Namespace, *, blocking: bool
) -> dict[str, float]:
    """Means of a job's steps after the first few."""
    config = job_config(
        model=str(model),
        # As many samples as make a step longer than its weights take to arrive.
        algorithm={**ENDLESS, "prompts_per_step": 4, "group_size": arguments.group_size},
        weight_sync={"engine": "gloo", "blocking": blocking},
        membership=FAST,
        trainer_replicas=2,
        trainer_engine=EngineRef("fsdp2", {"minibatches": 1}),
    )
    with tempfile.TemporaryDirectory() as folder:
        async with LocalJob(Path(folder), config) as job:
            await job.start(rollouts=arguments.rollouts)
            await serving(job)
            await job.steps(WARM_UP, seconds=300)
            before = await job.trainer.metrics()
            await job.steps(arguments.steps, seconds=600)
            after = await job.trainer.metrics()
    found = {name: mean(name, before, after) for name in MEANS}
    expected = (after[VERSION] - before[VERSION]) * weights * arguments.rollouts
    if abs(after[RECEIVED] - before[RECEIVED] - expected) > 0.01 * expected:
        raise RuntimeError(
            f"rollouts received {after[RECEIVED] - before[RECEIVED]:.0f} bytes, not {expected:.0f}"
        )
    return {"visible_wait_seconds": found[SNAPSHOT] + found[POLICY], **found}


def mean(name: str, before: dict[str, float], after: dict[str, float]) -> float:
    """Of what a histogram counted between two samples."""
    total, count = (after[f"{name}_{part}"] - before[f"{name}_{part}"] for part in ("sum", "count"))
    return total / max(1.0, count)


def compare(pairs: Sequence[tuple[dict[str, float], dict[str, float]]]) -> dict[str, Any]:
    """Medians of both modes, and how many times as long training waits when it blocks."""
    waits = [
        blocking["visible_wait_seconds"] / asynchronous["visible_wait_seconds"]
        for blocking, asynchronous in pairs
    ]
    modes = {
        mode: {name: statistics.median(run[name] for run in runs) for name in runs[0]}
        for mode, runs in zip(("blocking", "asynchronous"), zip(*pairs, strict=True), strict=True)
    }
    return {
        **rounded(modes),
        "wait_ratio": rounded(
            {"median": statistics.median(waits), "least": min(waits), "most": max(waits)}
        ),
        "goal": GOAL,
        "reached": statistics.median(waits) >= GOAL,
    }


def main() -> None:
    """Run pairs of jobs, one after another."""
    parser = argparse.ArgumentParser(prog="python -m hack.bench.sync_wait")
    parser.add_argument("--mebibytes", type=int, choices=tuple(MODELS), default=64)
    parser.add_argument("--rollouts", type=int, default=4)
    parser.add_argument("--group-size", type=int, default=4)
    parser.add_argument("--steps", type=int, default=20, help="of each job, after the first few")
    parser.add_argument("--pairs", type=int, default=3)
    arguments = parser.parse_args()
    run, pairs = run_record(vars(arguments)), []
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        weights = write_model(model, arguments.mebibytes)
        for _ in range(arguments.pairs):
            blocking, asynchronous = (
                asyncio.run(run_job(model, weights, arguments, blocking=mode))
                for mode in (True, False)
            )
            pairs.append((blocking, asynchronous))
            print(
                json.dumps(rounded({"blocking": blocking, "asynchronous": asynchronous})),
                flush=True,
            )
    found = compare(pairs)
    finish("sync-wait", run, {"weight_bytes": weights, **found})
    sys.exit(0 if found["reached"] else 1)


if __name__ == "__main__":
    main()
