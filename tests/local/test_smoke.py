"""One trainer and one rollout do a few steps, then end in order."""

import signal
from pathlib import Path

from tests.local.harness import FAST, LocalJob
from tests.unit.rollcall_runtime.jobs import job_config


async def test_a_job_of_three_steps_finishes(tmp_path: Path) -> None:
    config = job_config(algorithm={"max_steps": 3}, membership=FAST)
    async with LocalJob(tmp_path, config) as job:
        await job.start(rollouts=1)
        seen = await job.roll.until(lambda s: s.finished is not None, seconds=30)
        assert seen.snapshot.finished is not None
        assert (seen.snapshot.finished.step, seen.snapshot.finished.error) == (3, "")
        assert seen.snapshot.progress.weight_version == 3
        values = await job.rollouts[0].metrics()
        assert values["weight_version"] == 3
        assert values["rollout_samples_total"] >= 3 * 16 * 16
        for pod in (job.rollouts[0], job.trainer):
            pod.send(signal.SIGTERM)
            assert await pod.exited(seconds=10) == 0
