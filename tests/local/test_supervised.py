"""Supervised training as the operator starts it: a pod of two ranks, and no rollouts."""

import signal
from pathlib import Path

import pytest

from rollcall_protocol.job_config import CheckpointConfig
from rollcall_protocol.pod_contract import ExitCode
from rollcall_protocol.supervised_config import SupervisedConfig
from rollcall_runtime.models.open_model import open_model
from tests.local.harness import FAST, START_SECONDS, STEP_SECONDS, LocalJob
from tests.unit.rollcall_runtime.jobs import job_config
from tests.unit.rollcall_runtime.train.supervised_data import MODEL, reverse_answers

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.new_interpreters]

ROWS, STEPS = 64, 8


async def test_two_ranks_of_a_pod_learn_report_and_export(tmp_path: Path) -> None:
    exported = tmp_path / "exported"
    config = job_config(
        model=MODEL,
        data=reverse_answers(tmp_path / "rows.jsonl", rows=ROWS),
        membership=FAST,
        trainer_processes=2,
        checkpoint=CheckpointConfig(4, str(tmp_path / "saved")),
        supervised=SupervisedConfig(
            learning_rate=1e-3, rows_per_step=8, max_steps=STEPS, export_path=str(exported)
        ),
    )
    async with LocalJob(tmp_path, config) as job:
        job.trainer.start()
        job.operator.start()
        seen = await job.operator.until(
            lambda s: s.finished is not None, seconds=START_SECONDS + STEP_SECONDS
        )
        assert seen.snapshot.finished is not None
        assert (seen.snapshot.finished.step, seen.snapshot.progress.max_steps) == (STEPS, STEPS)
        assert seen.snapshot.members == ()
        assert (await job.trainer.metrics())["step"] == STEPS
        job.trainer.send(signal.SIGTERM)
        assert await job.trainer.exited(seconds=30) == ExitCode.OK
    assert open_model(str(exported)).vocabulary == open_model(MODEL).vocabulary
    assert list((tmp_path / "saved").glob("step-*")), "it could have been resumed"
