"""A trainer that fails starts again with all of its ranks; the rollouts stay as they are."""

import json
import signal
import time
from pathlib import Path

import pytest

from rollcall_protocol.config import CheckpointConfig
from rollcall_protocol.env import ExitCode
from tests.local.harness import FAST, LocalJob
from tests.local.pods import Pod
from tests.local.test_elasticity import START_SECONDS, STEP_SECONDS, in_sync, training
from tests.unit.rollcall_runtime.jobs import job_config

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ENDLESS = {"max_steps": 1_000_000}
QUICK = {**FAST, "heartbeat": 0.2, "suspect_after": 1.0}


def lines(pod: Pod, life: int = -1) -> list[dict[str, object]]:
    """What it logged in a life."""
    text = pod.logs[life].read_text(errors="replace")
    return [json.loads(line) for line in text.splitlines() if line[:1] == "{"]


def losses(pod: Pod, life: int = -1) -> dict[int, object]:
    """Losses of each step (of all minibatches, every bit of them)."""
    return {int(str(line["step"])): line["losses"] for line in lines(pod, life) if "losses" in line}


async def restart_gang(job: LocalJob, *, killed: Pod) -> None:
    """What the kubelets do: start each container again once it has ended."""
    for pod in job.trainers:
        code = await pod.exited(seconds=20)
        assert pod is killed or code == ExitCode.FAILED
    for pod in job.trainers:
        pod.start()


@pytest.mark.parametrize("victim", [0, 1])
async def test_a_killed_rank_has_the_gang_start_again_and_the_rollouts_stay(
    tmp_path: Path, victim: int
) -> None:
    config = job_config(
        algorithm=ENDLESS, membership=FAST, trainer_replicas=2,
        checkpoint=CheckpointConfig(5, str(tmp_path / "saved")),
    )  # fmt: skip
    async with LocalJob(tmp_path, config) as job:
        await training(job, rollouts=2)
        await job.steps(10, seconds=STEP_SECONDS)
        reached = job.roll.last.progress.step
        killed, at = job.trainers[victim], time.monotonic()
        killed.send(signal.SIGKILL)
        await restart_gang(job, killed=killed)
        assert time.monotonic() - at < 10, "the other rank does not wait for a collective's timeout"
        seen = await job.roll.until(
            lambda s: s.boot == 2 and in_sync(s, *job.rollouts), seconds=START_SECONDS
        )
        assert seen.snapshot.progress.step >= reached - 5
        await job.steps(5, seconds=STEP_SECONDS)
        for pod in job.rollouts:
            assert len(pod.logs) == 1, "never started again"
            assert pod.running
        assert (await job.prompts()).balanced


@pytest.mark.parametrize("victim", [0, 1])
async def test_a_stopped_rank_is_found_within_the_bound(tmp_path: Path, victim: int) -> None:
    config = job_config(algorithm=ENDLESS, membership=QUICK, trainer_replicas=2)
    async with LocalJob(tmp_path, config) as job:
        await training(job, rollouts=1)
        stopped, other = job.trainers[victim], job.trainers[1 - victim]
        stopped.send(signal.SIGSTOP)
        try:
            assert await other.exited(seconds=10) == ExitCode.FAILED
        finally:
            stopped.send(signal.SIGCONT)
        assert "nothing heard for 3 s" in other.log()
        assert await stopped.exited(seconds=10) == ExitCode.FAILED, "it cannot go on alone"
