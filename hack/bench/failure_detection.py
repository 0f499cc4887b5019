"""How fast dead and hung rollouts are found out, and come back. The last line is JSON.

Run with `python -m hack.bench.failure_detection [--trials N] [--suspect-after S]`; seconds. Kills
and stops take turns in one job; `lag` is how late an idle process was woken meanwhile.
"""

import argparse
import asyncio
import signal
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from hack.bench.run_record import finish, run_record
from rollcall_protocol.wire.job_snapshot import JobSnapshot, MemberState
from tests.process.harness import FAST, Lag, LocalJob
from tests.process.pods import Pod
from tests.unit.rollcall_runtime.jobs import job_config

ROLLOUTS = 3
PATIENCE = 120.0


def states(snapshot: JobSnapshot) -> dict[str, MemberState]:
    """State of each member by pod uid."""
    return {member.pod_uid: member.state for member in snapshot.members}


async def whole(job: LocalJob) -> float:
    """Wait until all rollouts serve in one session; when that was seen."""
    seen = await job.operator.until(
        lambda s: (
            list(states(s).values()) == [MemberState.IN_SYNC] * ROLLOUTS
            and s.session is not None
            and s.session.members == ROLLOUTS + 1
        ),
        seconds=PATIENCE,
    )
    return seen.at


async def trial(job: LocalJob, victim: Pod, number: signal.Signals) -> dict[str, float]:
    """Seconds from the signal to each thing that is seen."""
    lag, began = Lag(), time.monotonic()
    victim.send(number)
    suspect = await job.operator.until(
        lambda s: states(s)[victim.uid] is MemberState.SUSPECT, seconds=PATIENCE
    )
    session = await job.operator.until(
        lambda s: s.session is not None and s.session.members == ROLLOUTS, seconds=PATIENCE
    )
    found = {"suspected": suspect.at - began, "session": session.at - began, "lag": lag.stop()}
    if number is signal.SIGSTOP:
        resumed = time.monotonic()
        victim.send(signal.SIGCONT)
        found["back"] = await whole(job) - resumed
    else:
        await victim.exited(seconds=5)
        victim.start()
        await whole(job)
    await job.steps(3, seconds=PATIENCE)
    return found


async def measure(trials: int, suspect_after: float) -> dict[str, dict[str, float]]:
    """All trials, in one job."""
    bounds = {**FAST, "heartbeat": suspect_after / 3, "suspect_after": suspect_after}
    config = job_config(algorithm={"max_steps": 1_000_000}, membership=bounds)
    found: defaultdict[str, list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        async with LocalJob(Path(folder), config) as job:
            await job.start(rollouts=ROLLOUTS)
            await whole(job)
            await job.steps(10, seconds=PATIENCE)
            for round_number in range(trials):
                for offset, number in enumerate((signal.SIGKILL, signal.SIGSTOP)):
                    victim = job.rollouts[(round_number + offset) % ROLLOUTS]
                    for name, value in (await trial(job, victim, number)).items():
                        found[f"{number.name} {name}"].append(value)
    return {name: summary(values) for name, values in found.items()}


def summary(values: Sequence[float]) -> dict[str, float]:
    """Median and extremes, rounded to milliseconds."""
    numbers = {"median": statistics.median(values), "min": min(values), "max": max(values)}
    return {"n": len(values), **{name: round(value, 3) for name, value in numbers.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument("--suspect-after", type=float, default=3.0)
    arguments = parser.parse_args()
    run = run_record(vars(arguments))
    finish(
        "failure-detection", run, asyncio.run(measure(arguments.trials, arguments.suspect_after))
    )


if __name__ == "__main__":
    main()
