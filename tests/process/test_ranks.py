"""A trainer of two ranks: the second one follows the first."""

import signal
from pathlib import Path

import pytest

from rollcall_protocol.job_config import CheckpointConfig
from tests.process import fake_accelerator
from tests.process.harness import FAST, LocalJob
from tests.unit.rollcall_runtime.jobs import job_config

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("staging", ["Host", "Streamed", "Device"])
async def test_two_ranks_train_publish_and_save_together(tmp_path: Path, staging: str) -> None:
    config = job_config(
        algorithm={"max_steps": 12},
        membership=FAST,
        trainer_replicas=2,
        checkpoint=CheckpointConfig(5, str(tmp_path / "saved")),
        weight_sync={"staging": staging},
    )
    async with LocalJob(tmp_path, config) as job:
        if staging == "Device":
            for pod in job.trainers:
                pod.imports = fake_accelerator.__name__
        await job.start(rollouts=1)
        seen = await job.finished(seconds=120)
        assert seen.snapshot.progress.weight_version == 12
        if staging == "Device":
            for pod in job.trainers:
                assert f"snapshots are made on the {fake_accelerator.DEVICE}" in pod.log()
        saved = sorted(path.name for path in (tmp_path / "saved").glob("step-*"))
        assert saved == ["step-00000010", "step-00000012"], "every fifth, and the last"
        for pod in job.trainers:
            pod.send(signal.SIGTERM)
            assert await pod.exited(seconds=20) == 0
