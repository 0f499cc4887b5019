"""A rollout that is killed in the middle of a publication, and when the publication is whole."""

import asyncio
import time
from typing import Any

from hack.bench.own_trainer.receiving_rollouts import add_rollout, receiving_rollouts, weights
from hack.bench.spreads import spread
from tests.process.external_job import ExternalJob, Weights

SIZE = 256 << 20
_WARM_ROUNDS = 3


async def killed_rollouts(rounds: int) -> dict[str, Any]:
    """Seconds of undisturbed publications and of those with a kill, one after the other.

    A kill comes after half of the time that the undisturbed one before it took. One that came too
    late, so that nothing was left out, is measured again.
    """
    model = await asyncio.to_thread(weights, SIZE)
    undisturbed: list[float] = []
    killed: list[float] = []
    async with receiving_rollouts(2) as job:
        for number in range(_WARM_ROUNDS):
            await _publish(job, model, number)
        for number in range(4 * rounds):
            if len(killed) == rounds:
                break
            quiet = await _publish(job, model, number)
            publishing = asyncio.create_task(_publish(job, model, number))
            await asyncio.sleep(quiet / 2)
            victim = job.job.rollouts[0]
            hit = not publishing.done()
            await job.kill(victim)
            seconds = await publishing
            if hit:
                undisturbed.append(quiet)
                killed.append(seconds)
            newcomer = await add_rollout(job)
            await job.happened("current", newcomer, seconds=60)
            await _publish(job, model, number)
    later = [with_kill - quiet for with_kill, quiet in zip(killed, undisturbed, strict=True)]
    return {
        "undisturbed": spread(undisturbed),
        "killed": spread(killed),
        "later": spread(later),
        "kills": len(killed),
    }


async def _publish(job: ExternalJob, model: Weights, step: int) -> float:
    began = time.monotonic()
    await job.call(job.rollcall.publish, model, step)
    return time.monotonic() - began
