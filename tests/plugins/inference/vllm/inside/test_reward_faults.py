"""A reward with every fault beside a real vLLM: it costs groups, and nothing else."""

from __future__ import annotations

import shutil
import signal
import tempfile
from pathlib import Path

import pytest

from rollcall_protocol.job_config import RewardErrorConfig
from rollcall_protocol.wire.reward_errors import RewardErrorKind
from tests.plugins.inference.vllm.inside import faulty_rewards
from tests.plugins.inference.vllm.inside.left_behind import left
from tests.plugins.inference.vllm.inside.small_volume import mounted
from tests.plugins.inference.vllm.inside.test_job import START_SECONDS, job_of
from tests.process.harness import in_sync

STEPS = 20
FINISH_SECONDS = 300.0


@pytest.mark.timeout(600)
async def test_a_reward_that_hangs_raises_forks_and_fills_the_disk_costs_its_groups_alone(
    tmp_path: Path,
) -> None:
    errors = RewardErrorConfig(max_share=0.5, timeout=1.0)
    with tempfile.TemporaryDirectory() as name, mounted(volume := Path(name)):
        async with job_of(
            tmp_path, reward_function=faulty_rewards.NAME, reward_errors=errors
        ) as job:
            rollout = await job.launch(TMPDIR=name)
            await job.start(rollouts=0)
            await job.operator.until(lambda s: in_sync(s, rollout), seconds=START_SECONDS)
            await job.reach(STEPS, seconds=FINISH_SECONDS)
            assert rollout.running
            assert len(rollout.logs) == 1, "it was not started again"
            values = await job.trainer.metrics()
            for kind in (RewardErrorKind.TIMED_OUT, RewardErrorKind.RAISED):
                assert values[f"reward_errors_total{{{kind.value}}}"] > 0
            assert "No space left on device" in rollout.log()
            assert shutil.disk_usage(volume).free == 0
            assert (await rollout.metrics())["weight_version"] >= STEPS - 2, "on a full disk, too"
            assert (await job.prompts()).balanced
            rollout.send(signal.SIGTERM)
            assert await rollout.exited(seconds=60) == 0
            assert left(volume, set()) == [volume / faulty_rewards.FILLER]
