"""What a step costs and what a kill costs, in whole jobs of real processes. The last line is JSON.

`python -m hack.bench.local_job [--kills N] [--steps N]`; nothing else should run meanwhile.
"""

import argparse
import asyncio
import signal
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import aiohttp

from hack.bench.run_record import finish, run_record
from rollcall_protocol.pod_contract import METRICS_PORT
from rollcall_protocol.wire.job_snapshot import MemberState
from rollcall_protocol.wire.roster import EpochCause
from tests.process.harness import FAST, Lag, LocalJob
from tests.unit.rollcall_runtime.jobs import job_config

CPU = "process_cpu_seconds_total"
MEANS = (
    "step_seconds",
    "train_seconds",
    "wait_for_batch_seconds",
    "wait_for_policy_seconds",
    "param_sync_snapshot_seconds",
    "param_sync_stage_seconds",
    "param_sync_commit_seconds",
    "staleness_versions",
)
WARM_UP = 20  # steps


def job(folder: Path) -> LocalJob:
    config = job_config(algorithm={"max_steps": 1_000_000}, membership=FAST)
    return LocalJob(folder, config)


async def serving(job: LocalJob) -> None:
    """Wait until all rollouts serve."""
    uids = {pod.uid for pod in job.rollouts}
    await job.operator.until(
        lambda s: (
            {m.pod_uid for m in s.members if m.state is MemberState.IN_SYNC} == uids
            and s.session is not None
            and s.session.members == len(uids) + 1
        ),
        seconds=120,
    )


async def throughput(rollouts: int, steps: int) -> dict[str, float]:
    """Steps a second and CPU seconds a step."""
    with tempfile.TemporaryDirectory() as folder:
        async with job(Path(folder)) as running:
            await running.start(rollouts=rollouts)
            await serving(running)
            await running.steps(WARM_UP, seconds=120)
            before, began = await sample(running), time.monotonic()
            await running.steps(steps, seconds=600)
            after, seconds = await sample(running), time.monotonic() - began
    trainer = [b - a for a, b in zip(before[0], after[0], strict=True)]
    done = trainer[0]
    used = [after[i][1] - before[i][1] for i in range(1, len(after))]
    found = {
        "steps_per_second": done / seconds,
        "trainer_cpu_seconds_per_step": trainer[1] / done,
        "rollouts_cpu_seconds_per_step": sum(used) / done,
    }
    for number, name in enumerate(MEANS):
        total, count = trainer[2 + 2 * number : 4 + 2 * number]
        found[name] = total / max(1, count)
    return found


async def sample(running: LocalJob) -> list[list[float]]:
    """Steps, CPU, then sum and count of each mean of the trainer; then the same of rollouts."""
    rows = []
    for pod in (running.trainer, *running.rollouts):
        values = await pod.metrics()
        row = [values.get("step", 0.0), values[CPU]]
        for name in MEANS:
            row += [values.get(f"{name}_sum", 0.0), values.get(f"{name}_count", 0.0)]
        rows.append(row)
    return rows


async def kills(count: int) -> dict[str, Any]:
    """From SIGKILL to the survivors' session, and the longest step around it, `count` times."""
    sessions, stalls, lags = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        async with job(Path(folder)) as running:
            await running.start(rollouts=3)
            await serving(running)
            await running.steps(WARM_UP, seconds=120)
            usual = statistics.median(running.step_seconds())
            for number in range(count):
                victim = running.rollouts[number % 3]
                lag, steps = Lag(), len(running.step_seconds())
                killed = time.monotonic()
                victim.send(signal.SIGKILL)
                seen = await running.operator.until(
                    lambda s: s.session is not None and s.session.members == 3, seconds=30
                )
                sessions.append(seen.at - killed)
                await running.steps(5, seconds=60)
                stalls.append(max(running.step_seconds()[steps:]))
                lags.append(lag.stop())
                await victim.exited(seconds=5)
                victim.start()
                await serving(running)
                await running.steps(5, seconds=60)
            await running.push_roster(EpochCause.MEMBER_LOST)
    return {
        "usual_step_seconds": usual,
        "kill_to_session_seconds": {"median": statistics.median(sessions), "max": max(sessions)},
        "step_with_a_kill_seconds": {"median": statistics.median(stalls), "max": max(stalls)},
        "machine_lag_seconds": max(lags),
    }


async def latency(requests: int) -> dict[str, float]:
    """How long the trainer's event loop takes to answer while it trains."""
    with tempfile.TemporaryDirectory() as folder:
        async with job(Path(folder)) as running:
            await running.start(rollouts=2)
            await serving(running)
            await running.steps(WARM_UP, seconds=120)
            url, seconds = f"http://{running.trainer.address}:{METRICS_PORT}/healthz", []
            async with aiohttp.ClientSession() as session:
                for _ in range(requests):
                    await asyncio.sleep(0.005)
                    began = time.perf_counter()
                    async with session.get(url) as answer:
                        await answer.read()
                    seconds.append(time.perf_counter() - began)
    seconds.sort()
    return {
        "median": statistics.median(seconds),
        "p99": seconds[int(0.99 * len(seconds))],
        "max": seconds[-1],
    }


async def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Everything, one job after another."""
    return {
        "rollouts_2": await throughput(2, arguments.steps),
        "rollouts_4": await throughput(4, arguments.steps),
        "kills": await kills(arguments.kills),
        "trainer_answers_seconds": await latency(500),
    }


def rounded(value: Any) -> Any:
    """Three significant digits, all the way down."""
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return float(f"{value:.3g}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=6)
    parser.add_argument("--steps", type=int, default=150)
    arguments = parser.parse_args()
    run = run_record(vars(arguments))
    finish("local-job", run, rounded(asyncio.run(measure(arguments))))


if __name__ == "__main__":
    main()
