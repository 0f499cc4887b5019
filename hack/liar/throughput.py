"""Steps an hour with a liar among four rollouts, and under attacks from outside, against none.

`python -m hack.liar.throughput`: the three conditions take turns on one job of two trainer ranks,
four rollouts and a reference pod, so that other work on the machine slows them alike. The process
that attacks has the lowest priority. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import os
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hack.attacks.attack import NotRefusedError
from hack.attacks.catalogue import all_attacks
from hack.attacks.target import AttackedJob, attacked_job
from hack.bench.run_record import finish, run_record
from hack.liar.liar_slot import LiarSlot, SharedRoster
from rollcall_protocol.wire.roster import EpochCause
from tests.process.harness import START_SECONDS, in_sync

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine, Sequence

ROLLOUTS = 4
CONDITIONS = ("none", "unauthenticated", "liar")
CLOSE_SECONDS = 30.0
LEAST_PRIORITY = 19


class Throughput:
    """Counts the steps of one job in turns of `seconds`."""

    def __init__(self, job: AttackedJob, *, seconds: float) -> None:
        self._job, self._seconds = job, seconds
        self._slot = LiarSlot(SharedRoster(job.job), seed=job.seed, ask=lambda: None)
        attacks = [attack for attack in all_attacks() if attack.role == "unauthenticated"]
        job.random.shuffle(attacks)
        self._attacks = itertools.cycle(attacks)

    async def turn(self, condition: str) -> float:
        """Steps an hour under one condition."""
        job = self._job.job
        if condition == "liar":
            async with self._one_fewer(), _beside(self._slot.run()):
                return await self._count()
        await job.operator.until(lambda s: in_sync(s, *job.rollouts), seconds=START_SECONDS)
        if condition == "unauthenticated":
            async with _beside(self._attack()):
                return await self._count()
        return await self._count()

    async def _count(self) -> float:
        operator = self._job.job.operator
        began, first = time.monotonic(), operator.last.progress.step
        await asyncio.sleep(self._seconds)
        steps = operator.last.progress.step - first
        return 3600.0 * steps / (time.monotonic() - began)

    async def _attack(self) -> None:
        for attack in self._attacks:
            # `make attacks` judges it; a timeout ends one that outlasts its turn.
            with contextlib.suppress(NotRefusedError, TimeoutError):
                async with asyncio.timeout(attack.seconds):
                    await attack.run(self._job)

    @contextlib.asynccontextmanager
    async def _one_fewer(self) -> AsyncIterator[None]:
        """The liar takes an honest rollout's place."""
        job = self._job.job
        pod = job.rollouts.pop()
        pod.send(signal.SIGKILL)
        await pod.exited(seconds=CLOSE_SECONDS)
        await job.push_roster(EpochCause.MEMBER_LOST)
        try:
            yield
        finally:
            await job.launch()
            await job.push_roster(EpochCause.MEMBERS_JOINED)


@contextlib.asynccontextmanager
async def _beside(work: Coroutine[None, None, None]) -> AsyncIterator[None]:
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task], timeout=CLOSE_SECONDS)


async def measure(folder: Path, *, seed: int, rounds: int, seconds: float) -> dict[str, Any]:
    """All conditions in turn, `rounds` times; steps an hour, and the ratio of each round."""
    found: dict[str, list[float]] = {condition: [] for condition in CONDITIONS}
    async with attacked_job(folder, seed=seed, rollouts=ROLLOUTS) as job:
        os.nice(LEAST_PRIORITY)  # this process attacks; elsewhere it would have its own cores
        throughput = Throughput(job, seconds=seconds)
        for _ in range(rounds):
            for condition in CONDITIONS:
                found[condition].append(await throughput.turn(condition))
                print(f"{condition}: {found[condition][-1]:.0f} steps an hour", flush=True)
    return {
        condition: {
            "steps_an_hour": [round(value) for value in values],
            "ratio": _ratio(values, found["none"]),
        }
        for condition, values in found.items()
    }


def _ratio(values: Sequence[float], none: Sequence[float]) -> list[float]:
    """Median, least and most of the rounds' ratios."""
    ratios = [value / other for value, other in zip(values, none, strict=True)]
    return [round(f(ratios), 3) for f in (statistics.median, min, max)]


def main() -> int:
    """Measure and store the figures of the three conditions. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m hack.liar.throughput", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of lies and attacks")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=40, help="of each turn")
    options = parser.parse_args()
    run = run_record(vars(options))
    folder = Path(tempfile.mkdtemp(prefix="rollcall-liar-"))
    result = asyncio.run(
        measure(folder, seed=options.seed, rounds=options.rounds, seconds=options.seconds)
    )
    finish("liar-throughput", run, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
