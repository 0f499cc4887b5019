"""A job learns by what its rollouts generate themselves, and only if weights reach them."""

from tests.scenarios.conftest import Apply
from tests.scenarios.job import example

LEARNED, NEVER = 0.9, 0.5
STEPS = 130  # with weight sync the rewards are above 0.9 by then


async def test_a_job_learns(applied: Apply, job_name: str) -> None:
    job = await applied(example("reverse.yaml", name=job_name))
    await job.rewards_reach(LEARNED)


async def test_a_job_without_weight_sync_does_not_learn(applied: Apply, job_name: str) -> None:
    """The negative control: the trainer's own loss falls, and what rollouts generate stays bad."""
    job = await applied(example("reverse-no-sync.yaml", name=job_name))
    await job.trains(rollouts=2, steps=STEPS)
    assert max((await job.rewards()).values()) < NEVER
