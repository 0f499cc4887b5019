"""AReaL's own PPOTrainer, with Rollcall's import, on rollouts that die."""

import asyncio
import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from rollcall_protocol.wire.roster import EpochCause
from tests.process.engines.tiny_models import LETTERS, write_tiny_model
from tests.process.external_job import program_job
from tests.process.harness import LocalJob

PROGRAM = Path(__file__).with_name("program.py")
SECONDS = 150.0  # importing AReaL in three processes on two busy cores
pytestmark = pytest.mark.timeout(2 * SECONDS)


def areal_job(folder: Path, sync: dict[str, Any] | None = None, **settings: Any) -> LocalJob:
    """A job whose trainer is the program."""
    model = str(write_tiny_model(folder / "model", tied=False, characters=LETTERS, spread=0.02))
    arguments = [model, str(folder / "out"), json.dumps(settings)]
    return program_job(folder, model, str(PROGRAM), *arguments, sync=sync)


def logged(log: str, what: str) -> list[float]:
    """A figure that AReaL has logged, of each step, from its tables."""
    return [float(found) for found in re.findall(rf" {what} +│ +([-+0-9.e]+)", log)]


async def test_a_kill_in_the_middle_costs_no_step(tmp_path: Path) -> None:
    async with areal_job(tmp_path, steps=10) as job:
        await job.start(rollouts=2)
        await job.reach(3, seconds=SECONDS)
        job.rollouts[0].send(signal.SIGKILL)
        seen = await job.finished(seconds=SECONDS)
        log = job.trainer.log()
        assert seen.snapshot.finished is not None
        assert (seen.snapshot.finished.step, seen.snapshot.finished.error) == (10, "")
        rewards = logged(log, "rollout/reward")
        assert len(rewards) == 10
        assert rewards[-1] > rewards[0] + 0.2, "the rollouts' samples have become better"
        assert seen.snapshot.progress.rollout_reward == pytest.approx(rewards[-1], abs=1e-3)
        evaluated = logged(log, "eval-rollout/reward")
        assert len(evaluated) == 2
        assert evaluated[-1] > rewards[0] + 0.2
        for what in ("max", "min"):
            weights = logged(log, f"ppo_actor/update/importance_weight/{what}")
            assert weights == pytest.approx([1.0] * 10, abs=2e-3), "sampled from these weights"
        assert set(logged(log, ".*sample_staleness_theta_max")) == {0.0}
        assert not list((tmp_path / "out").rglob("weight_update*")), "no weights are left"
        assert job.trainer.running, "it stays until the pod is deleted"


async def test_without_weight_sync_it_does_not_learn(tmp_path: Path) -> None:
    async with areal_job(tmp_path, {"enabled": False}, steps=10) as job:
        await job.start(rollouts=2)
        await job.finished(seconds=SECONDS)
        log = job.trainer.log()
        rewards = logged(log, "rollout/reward")
        assert len(rewards) == 10
        assert max(rewards) < rewards[0] + 0.2
        assert max(logged(log, "ppo_actor/update/importance_weight/max")) > 1.1


async def test_a_trainer_that_is_started_again_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    async with areal_job(tmp_path, steps=8, ranks=2) as job:
        await job.start(rollouts=2)
        async with asyncio.timeout(SECONDS):
            # AReaL writes a checkpoint over the one before, and then the step's table. Killed in
            # the middle of one it cannot start again.
            while len(logged(job.trainer.log(), "rollout/reward")) < 3:
                await asyncio.sleep(0.02)
        job.trainer.send(signal.SIGKILL)
        await job.trainer.exited(seconds=20)
        await job.trainer.start()
        seen = await job.finished(seconds=SECONDS)
        assert seen.snapshot.finished is not None
        assert (seen.snapshot.finished.step, seen.snapshot.finished.error) == (8, "")
        log = job.trainer.log()
        assert 1 <= len(logged(log, "rollout/reward")) <= 5, "it did not begin at step 0"
        weights = logged(log, "ppo_actor/update/importance_weight/max")
        assert weights == pytest.approx([1.0] * len(weights), abs=2e-3)


async def test_samples_wait_while_there_is_no_rollout(tmp_path: Path) -> None:
    async with areal_job(tmp_path, steps=6) as job:
        await job.start(rollouts=1)
        await job.reach(2, seconds=SECONDS)
        job.rollouts[0].send(signal.SIGKILL)
        await job.rollouts[0].exited(seconds=20)
        await job.launch()
        await job.push_roster(EpochCause.MEMBERS_JOINED)
        seen = await job.finished(seconds=SECONDS)
        assert seen.snapshot.finished is not None
        assert len(logged(job.trainer.log(), "rollout/reward")) == 6
        assert set(logged(job.trainer.log(), ".*sample_staleness_theta_max")) == {0.0}


async def test_the_program_ends_when_its_coordinator_has(tmp_path: Path) -> None:
    """AReaL takes another sample for each that fails, for ever."""
    async with areal_job(tmp_path, steps=1000) as job:
        await job.start(rollouts=2)
        await job.reach(2, seconds=SECONDS)
        os.kill(coordinator_of(tmp_path), signal.SIGKILL)
        await job.trainer.exited(seconds=60)
        assert "the coordinator's process has ended" in job.trainer.log()


def coordinator_of(folder: Path) -> int:
    """The process id of the job's coordinator."""
    for path in Path("/proc").glob("[0-9]*"):
        try:
            command = (path / "cmdline").read_bytes()
            if (
                b"rollcall_runtime.external\0" in command
                and str(folder).encode() in (path / "environ").read_bytes()
            ):
                return int(path.name)
        except OSError:
            continue  # it has ended meanwhile
    raise AssertionError("there is no coordinator")
