"""Asynchronous beside synchronous training, in whole jobs of processes. The last line is JSON.

`python -m hack.bench.asynchronous_training [--seeds N] [--steps N]`: a trainer and one rollout,
each on a core of its own and with one thread, learn the reverse task. The synchronous side differs
in `maxStaleness: 0` alone. The two sides alternate; nothing else should run meanwhile. Exits with 1
if the asynchronous side reaches less reward, or makes fewer than 1.5 times the steps an hour.

With the defaults (16 prompts of 16 samples, `--concurrency 1`: one prompt in a call of the
inference engine) generating takes about as long as training: twice the steps would be the most
there is. With more prompts in a call it takes less, and there is less to gain.
"""

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hack.bench.local_job import rounded
from hack.bench.run_record import finish, run_record
from rollcall_protocol.data_config import DataConfig, DataSource
from rollcall_protocol.job_config import EngineRef
from tests.process.harness import FAST, LocalJob
from tests.process.pods import Pod
from tests.unit.rollcall_runtime.jobs import job_config

STALENESS = {"synchronous": 0, "asynchronous": 2}
GOAL = 1.5
REWARD = 0.9
LEAST_REWARD = 0.01  # so much lower is noise: each side samples on its own
WARM_UP = 20  # steps before the rate is taken
LAST = 10  # steps that the final reward is the mean of
MEANS = (
    "train_seconds",
    "param_sync_snapshot_seconds",
    "wait_for_policy_seconds",
    "wait_for_batch_seconds",
    "param_sync_stage_seconds",
    "param_sync_commit_seconds",
    "staleness_versions",
)
JOB_SECONDS = 300.0


async def run_job(side: str, seed: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """One job from its start to its last step."""
    config = job_config(
        algorithm={
            "max_steps": arguments.steps,
            "max_staleness": STALENESS[side],
            "prompts_per_step": arguments.prompts,
            "group_size": arguments.group_size,
            "max_concurrent_rollouts": 4 * arguments.prompts,  # more than staleness admits
        },
        data=DataConfig(sources=(DataSource("builtin:reverse"),), seed=seed),
        membership=FAST,
    )
    engine = EngineRef("tiny", {"concurrency": arguments.concurrency})
    with tempfile.TemporaryDirectory() as folder:
        async with LocalJob(Path(folder), config, rollout_engine=engine) as job:
            await job.start(rollouts=1)
            pin(job.trainer, core=0)
            pin(job.rollouts[0], core=1)
            await job.operator.until(lambda s: s.finished is not None, seconds=JOB_SECONDS)
            trainer, rollout = await job.trainer.metrics(), await job.rollouts[0].metrics()
            figures = job.step_figures()
            seconds = job.step_seconds()[WARM_UP:]
    rewards = [step["reward/mean"] for step in figures]
    return {
        "side": side,
        "seed": seed,
        "steps_per_hour": 3600 / statistics.fmean(seconds),
        "final_reward": statistics.fmean(rewards[-LAST:]),
        f"steps_to_{REWARD:g}": steps_to(rewards, REWARD),
        "stale_prompts": trainer.get("prompts_total{rejected}", 0.0),
        "rollout_cpu_seconds_per_step": rollout["process_cpu_seconds_total"] / len(figures),
        **{name: trainer[f"{name}_sum"] / max(1, trainer[f"{name}_count"]) for name in MEANS},
    }


def pin(pod: Pod, *, core: int) -> None:
    """Give a process that has just started one core, if this machine has that many."""
    if pod.process is not None and core in os.sched_getaffinity(0):
        os.sched_setaffinity(pod.process.pid, {core})


def steps_to(rewards: Sequence[float], reward: float) -> int | None:
    """The first step whose samples had this mean reward."""
    return next((step for step, mean in enumerate(rewards, 1) if mean >= reward), None)


def compare(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Medians of each side, and what the asynchronous one is to the synchronous one."""
    sides = {
        side: {
            key: statistics.median(run[key] for run in runs if run["side"] == side)
            for key, value in runs[0].items()
            if isinstance(value, float)
        }
        for side in STALENESS
    }
    speed = [
        fast["steps_per_hour"] / slow["steps_per_hour"]
        for slow, fast in zip(runs[::2], runs[1::2], strict=True)
    ]
    slow, fast = sides["synchronous"], sides["asynchronous"]
    return {
        "sides": rounded(sides),
        "steps_per_hour_ratio": rounded(
            {"median": statistics.median(speed), "least": min(speed), "most": max(speed)}
        ),
        "goal": GOAL,
        "reached": statistics.median(speed) >= GOAL
        and fast["final_reward"] >= slow["final_reward"] - LEAST_REWARD,
    }


def main() -> None:
    """Run each seed on both sides, one job after another."""
    parser = argparse.ArgumentParser(prog="python -m hack.bench.asynchronous_training")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--prompts", type=int, default=16, help="a step")
    parser.add_argument("--group-size", type=int, default=16)
    parser.add_argument("--concurrency", type=int, default=1, help="prompts in a rollout's call")
    arguments = parser.parse_args()
    run = run_record(vars(arguments))
    runs = []
    for seed in range(arguments.seeds):
        for side in STALENESS:
            runs.append(asyncio.run(run_job(side, seed, arguments)))
            print(runs[-1], flush=True)
    found = compare(runs)
    finish("asynchronous-training", run, {**found, "runs": runs})
    sys.exit(0 if found["reached"] else 1)


if __name__ == "__main__":
    main()
