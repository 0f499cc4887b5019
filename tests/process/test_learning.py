"""The main job learns, as its rollouts see it; without weight sync it does not."""

from pathlib import Path

import pytest

from tests.process.harness import FAST, WHOLE_TRAINING, LocalJob
from tests.unit.rollcall_runtime.jobs import job_config

pytestmark = WHOLE_TRAINING  # tests/cluster/jobs shows the same of real pods

STEPS = 150  # the reward is above 0.9 after some 110


async def rewards_after_training(job: LocalJob) -> list[float]:
    """Mean reward of each rollout's last 256 samples, once training is done."""
    await job.start(rollouts=2)
    await job.finished()
    return [(await pod.metrics())["rollout_reward"] for pod in job.rollouts]


async def test_it_learns(tmp_path: Path) -> None:
    config = job_config(algorithm={"max_steps": STEPS}, membership=FAST)
    async with LocalJob(tmp_path, config) as job:
        rewards = await rewards_after_training(job)
        assert min(rewards) >= 0.9, rewards
        trainer = await job.trainer.metrics()
        assert trainer["step"] == STEPS
        for pod in job.rollouts:
            behind = trainer["weight_version"] - (await pod.metrics())["weight_version"]
            assert 0 <= behind <= job.config.algorithm.max_staleness
        assert (await job.prompts()).balanced


async def test_without_weight_sync_the_rollouts_learn_nothing(tmp_path: Path) -> None:
    steps = 85  # with weight sync the rollouts' reward is above 0.5 by then
    config = job_config(
        weight_sync={"enabled": False}, algorithm={"max_steps": steps}, membership=FAST
    )
    async with LocalJob(tmp_path, config) as job:
        rewards = await rewards_after_training(job)
        assert max(rewards) < 0.3, rewards
        with pytest.raises(AssertionError):
            assert min(rewards) >= 0.9, "what the test above asserts"
        versions = [(await pod.metrics())["weight_version"] for pod in job.rollouts]
        assert min(versions) >= steps - 2, "versions were announced all the same"
