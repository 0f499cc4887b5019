"""Rollouts come, go, die and come back while training goes on."""

import signal
import time
from pathlib import Path

import pytest

from rollcall_protocol.job_config import CheckpointConfig
from rollcall_protocol.wire.job_snapshot import SessionCause
from rollcall_protocol.wire.roster import EpochCause
from tests.process.harness import ENDLESS, FAST, START_SECONDS, STEP_SECONDS, Lag, LocalJob, in_sync
from tests.unit.rollcall_runtime.jobs import job_config

pytestmark = pytest.mark.slow


async def test_newcomers_catch_up_and_serve_while_training_goes_on(tmp_path: Path) -> None:
    async with LocalJob(tmp_path, job_config(algorithm=ENDLESS, membership=FAST)) as job:
        await job.train(rollouts=2)
        before = job.operator.last.progress
        newcomers = [await job.launch(), await job.launch()]
        await job.push_roster(EpochCause.MEMBERS_JOINED)
        seen = await job.operator.until(lambda s: in_sync(s, *newcomers), seconds=START_SECONDS)
        assert seen.snapshot.session is not None
        assert seen.snapshot.session.members == 5
        assert seen.snapshot.progress.step > before.step, "training did not wait for them"
        for pod in newcomers:
            values = await pod.reaches("rollout_samples_total", 64, seconds=STEP_SECONDS)
            trainer = await job.trainer.metrics()
            assert trainer["weight_version"] - values["weight_version"] <= 2
        assert job.operator.last.boot == 1


@pytest.mark.alone
async def test_a_killed_rollout_costs_less_than_a_second_and_comes_back(tmp_path: Path) -> None:
    async with LocalJob(tmp_path, job_config(algorithm=ENDLESS, membership=FAST)) as job:
        await job.train(rollouts=3)
        victim = job.rollouts[0]
        lag = Lag()
        killed = time.monotonic()
        victim.send(signal.SIGKILL)
        seen = await job.operator.until(
            lambda s: s.session is not None and s.session.members == 3, seconds=10
        )  # the trainer and two survivors
        assert seen.at - killed < 1.0 + lag.worst
        assert seen.snapshot.session is not None
        # What is seen first decides: the stream's reset or, in mid-transfer, the broken group.
        assert seen.snapshot.session.cause in {SessionCause.MEMBER_LOST, SessionCause.ENGINE_ERROR}
        await job.steps(10, seconds=STEP_SECONDS)
        assert max(job.step_seconds()) < 1.0 + lag.stop(), "no step was held up for long"

        assert await victim.exited(seconds=5) == -signal.SIGKILL
        await victim.start()
        await job.operator.until(lambda s: in_sync(s, *job.rollouts), seconds=START_SECONDS)
        await victim.reaches("rollout_samples_total", 64, seconds=STEP_SECONDS)
        assert (await job.prompts()).balanced


async def test_a_rollout_that_gets_sigterm_finishes_its_work_first(tmp_path: Path) -> None:
    async with LocalJob(tmp_path, job_config(algorithm=ENDLESS, membership=FAST)) as job:
        await job.train(rollouts=2)
        leaving = job.rollouts[0]
        leaving.send(signal.SIGTERM)
        assert await leaving.exited(seconds=10) == 0
        assert "drained in" in leaving.log()
        await job.push_roster(EpochCause.SCALED_DOWN, without=(leaving,))
        await job.operator.until(
            lambda s: s.session is not None and s.session.members == 2, seconds=5
        )
        await job.steps(5, seconds=STEP_SECONDS)
        prompts = await job.prompts()
        assert prompts.balanced
        assert prompts.duplicate == 0, "what it had in hand was delivered or handed back"


async def test_a_stopped_rollout_is_left_behind(tmp_path: Path) -> None:
    """SIGSTOP: no reset ends the connection; missed heartbeats do."""
    async with LocalJob(tmp_path, job_config(algorithm=ENDLESS, membership=FAST)) as job:
        await job.train(rollouts=2)
        stopped = job.rollouts[0]
        stopped.send(signal.SIGSTOP)
        try:
            await job.operator.until(
                lambda s: s.session is not None and s.session.members == 2, seconds=20
            )
            await job.steps(5, seconds=STEP_SECONDS)
        finally:
            stopped.send(signal.SIGCONT)
        await job.operator.until(lambda s: in_sync(s, *job.rollouts), seconds=STEP_SECONDS)


async def test_a_restarted_trainer_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    config = job_config(
        algorithm=ENDLESS, membership=FAST, checkpoint=CheckpointConfig(5, str(tmp_path / "saved"))
    )
    async with LocalJob(tmp_path, config) as job:
        await job.train(rollouts=2)
        await job.steps(10, seconds=STEP_SECONDS)
        job.trainer.send(signal.SIGKILL)
        await job.trainer.exited(seconds=5)
        reached = job.operator.last.progress.step
        await job.trainer.start()
        seen = await job.operator.until(
            lambda s: s.boot == 2 and in_sync(s, *job.rollouts), seconds=START_SECONDS
        )
        assert seen.snapshot.progress.step >= reached - 5, "at most a checkpoint's worth is lost"
        await job.steps(5, seconds=STEP_SECONDS)
        assert "resumed from" in job.trainer.log()
        assert job.operator.last.roster_epoch == 1, "it went on with the roster it had kept"
        assert (await job.prompts()).balanced
