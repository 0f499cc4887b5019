"""Supervised training as the operator starts it: a pod of two ranks, and no rollouts."""

import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rollcall_plugins.trainers.supervised.batches import SupervisedBatches
from rollcall_protocol.job_config import CheckpointConfig
from rollcall_protocol.pod_contract import ExitCode
from rollcall_protocol.supervised_config import SupervisedConfig
from rollcall_runtime.data.supervised_rows import open_supervised
from rollcall_runtime.models.open_model import open_model
from tests.process.conftest import forked_workers, one_runtime
from tests.process.harness import FAST, START_SECONDS, STEP_SECONDS, LocalJob
from tests.unit.rollcall_runtime.data.character_tokenizer import no_tokenizer
from tests.unit.rollcall_runtime.jobs import job_config
from tests.unit.rollcall_runtime.train.supervised_data import MODEL, reverse_answers

__all__ = ["forked_workers", "one_runtime"]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.asyncio(loop_scope="session"),
]

ROWS, STEPS = 64, 8
EXIT_SECONDS = 30.0


async def test_two_ranks_of_a_pod_learn_report_and_export_and_one_goes_on(tmp_path: Path) -> None:
    exported = tmp_path / "exported"
    config = job_config(
        model=MODEL,
        data=reverse_answers(tmp_path / "rows.jsonl", rows=ROWS),
        membership=FAST,
        trainer_processes=2,
        checkpoint=CheckpointConfig(4, str(tmp_path / "saved")),
        supervised=SupervisedConfig(learning_rate=1e-3, rows_per_step=8, max_steps=STEPS),
        export_path=str(exported),
    )
    async with LocalJob(tmp_path, config) as job:
        await job.trainer.start()
        job.operator.start()
        seen = await job.finished(seconds=START_SECONDS + STEP_SECONDS)
        assert seen.snapshot.finished is not None
        assert (seen.snapshot.finished.step, seen.snapshot.progress.max_steps) == (STEPS, STEPS)
        assert seen.snapshot.members == ()
        assert (await job.trainer.metrics())["step"] == STEPS
        job.trainer.send(signal.SIGTERM)
        assert await job.trainer.exited(seconds=EXIT_SECONDS) == ExitCode.OK
    assert open_model(str(exported)).vocabulary == open_model(MODEL).vocabulary
    assert config.supervised is not None
    more = replace(config.supervised, max_steps=STEPS + 2)
    longer = replace(config, trainer_processes=1, supervised=more, export_path="")
    async with LocalJob(tmp_path, longer) as job:
        await job.trainer.start()
        job.operator.start()
        await job.finished(seconds=START_SECONDS + STEP_SECONDS)
        assert "resumed from" in job.trainer.log()
        assert f"step {STEPS + 1} of {STEPS + 2}" in job.trainer.log()
        assert f"step {STEPS} of" not in job.trainer.log()


async def test_it_goes_on_after_a_rank_was_killed_and_learns(tmp_path: Path) -> None:
    steps = 150
    config = job_config(
        model=MODEL,
        data=reverse_answers(tmp_path / "rows.jsonl", rows=2048),
        membership=FAST,
        trainer_replicas=2,
        checkpoint=CheckpointConfig(20, str(tmp_path / "saved")),
        supervised=SupervisedConfig(
            learning_rate=3e-3,
            rows_per_step=64,
            max_steps=steps,
            evaluation=reverse_answers(tmp_path / "held-out.jsonl", rows=32, seed=1),
        ),
        export_path=str(tmp_path / "exported"),
    )
    async with LocalJob(tmp_path, config) as job:
        for pod in job.trainers:
            await pod.start()
        job.operator.start()
        await job.reach(45, seconds=START_SECONDS + STEP_SECONDS)
        first, second = job.trainers
        second.send(signal.SIGKILL)
        assert await second.exited(seconds=EXIT_SECONDS) == -signal.SIGKILL
        assert await first.exited(seconds=EXIT_SECONDS) == ExitCode.FAILED
        for pod in job.trainers:
            await pod.start()
        await job.operator.until(
            lambda s: s.boot == 2 and s.finished is not None, seconds=START_SECONDS + STEP_SECONDS
        )
        assert "resumed from" in first.log()
    assert answered(tmp_path) > 0.9


async def test_it_saves_what_would_be_lost_when_it_is_stopped(tmp_path: Path) -> None:
    config = job_config(
        model=MODEL,
        data=reverse_answers(tmp_path / "rows.jsonl", rows=ROWS),
        membership=FAST,
        checkpoint=CheckpointConfig(100_000, str(tmp_path / "saved")),
        supervised=SupervisedConfig(rows_per_step=8, max_steps=1_000_000),
    )
    async with LocalJob(tmp_path, config) as job:
        await job.trainer.start()
        job.operator.start()
        await job.reach(5, seconds=START_SECONDS + STEP_SECONDS)
        job.trainer.send(signal.SIGTERM)
        assert await job.trainer.exited(seconds=EXIT_SECONDS) == ExitCode.OK
    assert list((tmp_path / "saved").glob("step-*"))


def answered(tmp_path: Path) -> float:
    """The share of the symbols of held-out answers that the exported model gives."""
    model = open_model(str(tmp_path / "exported")).build()
    held_out = reverse_answers(tmp_path / "held-out.jsonl", rows=32, seed=1)
    batch = SupervisedBatches(open_supervised(held_out, model=no_tokenizer()), 32).batch(0)
    with torch.no_grad():
        given = model(batch.tokens).argmax(-1)
    return float((given == batch.targets)[batch.mask].float().mean())
