"""Rollouts come, leave and die; training goes on, and no prompt is lost."""

from tests.scenarios.conftest import Apply
from tests.scenarios.job import balance, causes, example


async def test_rollouts_are_added_and_removed(applied: Apply, job_name: str) -> None:
    job = await applied(example("reverse.yaml", name=job_name))
    await job.trains(rollouts=2)
    await job.scale(f"{job_name}-cpu", 4)
    await job.trains(rollouts=4)
    await job.scale(f"{job_name}-cpu", 1)
    await job.trains(rollouts=1)
    assert {"MembersJoined", "ScaledDown"} <= set(causes(await job.summary()))


async def test_a_drained_rollout_is_replaced(applied: Apply, job_name: str) -> None:
    job = await applied(example("reverse.yaml", name=job_name))
    await job.trains(rollouts=2)
    leaves, *_ = await job.rollouts()
    await job.drain(leaves)
    await job.until(lambda s: leaves not in [rollout["name"] for rollout in s["rollouts"]])
    await job.trains(rollouts=2)


async def test_a_killed_rollout_is_replaced_and_no_prompt_is_lost(
    applied: Apply, job_name: str
) -> None:
    job = await applied(example("reverse.yaml", name=job_name))
    await job.trains(rollouts=2)
    victim, *_ = await job.rollouts()
    await job.kill(victim)
    await job.until(lambda s: victim not in [rollout["name"] for rollout in s["rollouts"]])
    await job.trains(rollouts=2)
    dispatched, became = balance(await job.metrics(f"{job_name}-trainer-0"))
    assert dispatched == became > 0
