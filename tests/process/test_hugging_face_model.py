"""A job of a model in Hugging Face's format: its rollouts serve what its trainer trains."""

import asyncio
from math import nan
from pathlib import Path

import aiohttp
import pytest

from rollcall_protocol.job_config import EngineRef
from tests.process.engines.tiny_models import LETTERS, write_tiny_model
from tests.process.harness import FAST, LocalJob, in_sync
from tests.process.pods import Pod
from tests.unit.rollcall_runtime.jobs import job_config

pytestmark = pytest.mark.slow

STEPS = 1000  # it is over when it has learned
LEARNED = 0.9  # chance is 0.05
# As many tokens as there are symbols: the task has no end of a response.
ENGINE = EngineRef("transformers", {"maxTokens": 5})


@pytest.mark.timeout(420)
async def test_a_tiny_qwen3_on_two_ranks_learns_as_its_rollouts_see_it(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "model", tied=False, characters=LETTERS, spread=0.02)
    config = job_config(
        model=str(model),
        reward_function="rollcall_runtime.tasks.repeat:reward",
        trainer_replicas=2,
        algorithm={"max_steps": STEPS},
        membership=FAST,
    )
    async with LocalJob(tmp_path, config, rollout_engine=ENGINE) as job:
        await job.start(rollouts=2)
        async with asyncio.timeout(360):
            while not all(reward >= LEARNED for reward in await rewards(job)):
                await asyncio.sleep(1)
        assert in_sync(job.operator.last, *job.rollouts)
        assert (await job.prompts()).balanced


async def rewards(job: LocalJob) -> list[float]:
    """The mean reward of the last 256 samples of each rollout; NaN before the first."""
    return [await reward(pod) for pod in job.rollouts]


async def reward(pod: Pod) -> float:
    assert pod.running, f"{pod.name} ended: {pod.log()[-2000:]}"
    try:
        return (await pod.metrics()).get("rollout_reward", nan)
    except aiohttp.ClientError:  # it does not listen yet
        return nan
