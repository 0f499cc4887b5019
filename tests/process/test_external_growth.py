"""A group that is rebuilt a hundred times leaves nothing behind in any process."""

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from rollcall_protocol.membership.stretched_bounds import STRETCH_LIMIT
from rollcall_protocol.wire.roster import EpochCause
from tests.process.external_job import ExternalJob, external_job
from tests.process.harness import FAST
from tests.unit.rollcall_runtime.jobs import external_job_config

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

REBUILDS, WARM = 100, 10
BYTES = 16 << 20  # that an allocator may keep
THREADS = 2  # of pools that fill up
# For the last groups to be closed: one that was given up ends with its engine's operations (10 s),
# which stretch on a busy machine.
SETTLED_SECONDS = 10.0 * STRETCH_LIMIT + 30.0
BASELINE_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Held:
    """What a process holds."""

    threads: int
    descriptors: int
    resident: int

    @classmethod
    def of(cls, pid: int) -> "Held":
        folder = Path(f"/proc/{pid}")
        pages = int((folder / "statm").read_text().split()[1])
        return cls(
            len(list((folder / "task").iterdir())),
            len(list((folder / "fd").iterdir())),
            pages * os.sysconf("SC_PAGE_SIZE"),
        )


@pytest.mark.parametrize("engine", ["gloo", "nixl"])
async def test_a_hundred_rebuilds_leave_nothing_behind(tmp_path: Path, engine: str) -> None:
    config = external_job_config(
        membership={**FAST, "settle": 0.02}, weight_sync={"engine": engine}
    )
    async with external_job(tmp_path, config=config) as job:
        for number in range(WARM):
            await rebuild(job, number)
        await asyncio.sleep(BASELINE_SECONDS)
        before = held(job)
        for number in range(WARM, WARM + REBUILDS):
            await rebuild(job, number)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + SETTLED_SECONDS
        while grown(before, held(job)) and loop.time() < deadline:
            await asyncio.sleep(0.2)
        more = grown(before, held(job))
        assert more == [], more


def grown(before: dict[str, Held], now: dict[str, Held]) -> list[str]:
    """What a process holds more of than it may."""
    found = []
    for name, held_now in now.items():
        at_first = before[name]
        more = {
            "threads": held_now.threads - at_first.threads > THREADS,
            "descriptors": held_now.descriptors > at_first.descriptors,
            "memory": held_now.resident > at_first.resident + BYTES,
        }
        found += [
            f"{name}: {what}: {at_first} {held_now}" for what, is_more in more.items() if is_more
        ]
    return found


async def rebuild(job: ExternalJob, number: int) -> None:
    """A rollout leaves the roster, or comes back; a publication reaches those of the roster."""
    staying, other = job.job.rollouts
    if number % 2:
        await job.job.push_roster(EpochCause.MEMBERS_JOINED)
        wanted = {staying.name, other.name}
    else:
        await job.job.push_roster(EpochCause.SCALED_DOWN, without=(other,))
        wanted = {staying.name}
    async with asyncio.timeout(20):
        while set((await job.call(job.rollcall.publish, job.weights(number))).members) != wanted:
            await asyncio.sleep(0.02)


def held(job: ExternalJob) -> dict[str, Held]:
    """By process: the trainer, its coordinator, the rollouts."""
    processes = {"trainer": os.getpid(), "coordinator": job.rollcall.coordinator_pid}
    for pod in job.job.rollouts:
        assert pod.process is not None
        processes[pod.name] = pod.process.pid
    return {name: Held.of(pid) for name, pid in processes.items()}
