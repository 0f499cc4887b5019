"""PPO with critic and reference, evaluation and tracking, over the kill of a trainer."""

import signal
from pathlib import Path

import pytest

from rollcall_protocol.algorithm_settings import preset
from rollcall_protocol.data_config import DataConfig, DataSource
from rollcall_protocol.job_config import CheckpointConfig, EvaluationConfig, TrackingConfig
from tests.process.harness import FAST, STEP_SECONDS, LocalJob
from tests.unit.rollcall_runtime.jobs import job_config
from tests.unit.rollcall_runtime.train.test_tracking import scalars


@pytest.mark.slow
async def test_a_killed_trainer_goes_on_with_its_critic_and_its_curves(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    config = job_config(
        algorithm={"max_steps": 8, "settings": preset("ppo", kl_coefficient=0.01)},
        membership=FAST,
        checkpoint=CheckpointConfig(2, str(tmp_path / "checkpoints")),
        tracking=TrackingConfig(folder=str(tmp_path / "curves")),
        evaluation=EvaluationConfig(
            every_steps=4,
            data=DataConfig((DataSource("builtin:reverse"),), seed=1),
            prompts=4,
            samples=4,
            pass_at=(1, 4),
        ),
    )
    async with LocalJob(tmp_path, config) as job:
        await job.start(rollouts=1)
        await job.reach(4, seconds=STEP_SECONDS)
        job.trainer.send(signal.SIGKILL)
        await job.trainer.exited(seconds=10)
        await job.trainer.start()
        seen = await job.finished(seconds=STEP_SECONDS)
        assert seen.snapshot.finished is not None
        assert seen.snapshot.finished.step == 8
        saved = sorted(path.name for path in (tmp_path / "checkpoints" / "critic").iterdir())
        assert saved[-1] == "step-00000008"
    curves = scalars(tmp_path / "curves")
    assert [step for step, _ in curves["reward/mean"]] == list(range(1, 9))
    assert {"actor/pg_loss", "critic/vf_loss", "eval/reward/mean"} <= curves.keys()
    assert [step for step, _ in curves["eval/pass@4"]][-1] == 8
    # The first batch is of the weights that are trained: rollouts and trainer compute the same.
    assert curves["actor/same_version"][0] == (1, 1.0)
    assert curves["actor/mismatch_kl"][0][1] < 1e-6
    assert curves["actor/mismatch_ratio"][0][1] == pytest.approx(1, abs=1e-3)
