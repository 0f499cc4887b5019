"""A trainer that fails starts again with all of its ranks; the rollouts stay as they are."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollcall_protocol import pod_contract
from rollcall_protocol.job_config import CheckpointConfig, JobConfig
from rollcall_protocol.pod_contract import ExitCode
from rollcall_protocol.wire.ids import Lineage, Version
from rollcall_protocol.wire.json_codec import encode
from tests.process.harness import ENDLESS, FAST, START_SECONDS, STEP_SECONDS, LocalJob, in_sync
from tests.process.held_weights import weights_of
from tests.process.pods import Pod
from tests.process.ticket_giver import TicketGiver
from tests.unit.rollcall_runtime.jobs import job_config

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

QUICK = {**FAST, "heartbeat": 0.2, "suspect_after": 1.0}


def lines(pod: Pod, life: int = -1) -> list[dict[str, object]]:
    """What it logged in a life."""
    text = pod.logs[life].read_text(errors="replace")
    whole = text[: text.rfind("\n") + 1]
    return [json.loads(line) for line in whole.splitlines() if line[:1] == "{"]


def losses(pod: Pod, life: int = -1) -> dict[int, object]:
    """Losses of each step (of all minibatches, every bit of them)."""
    return {int(str(line["step"])): line["losses"] for line in lines(pod, life) if "losses" in line}


async def restart_gang(job: LocalJob, *, killed: Pod) -> None:
    """What the kubelets do: start each container again once it has ended."""
    for pod in job.trainers:
        code = await pod.exited(seconds=20)
        assert pod is killed or code == ExitCode.FAILED
    for pod in job.trainers:
        await pod.start()


@pytest.mark.parametrize("victim", [0, 1])
async def test_a_killed_rank_has_the_gang_start_again_and_the_rollouts_stay(
    tmp_path: Path, victim: int
) -> None:
    config = job_config(
        algorithm=ENDLESS,
        membership=FAST,
        trainer_replicas=2,
        checkpoint=CheckpointConfig(5, str(tmp_path / "saved")),
    )
    async with LocalJob(tmp_path, config) as job:
        await job.train(rollouts=2)
        await job.steps(10, seconds=STEP_SECONDS)
        reached = job.operator.last.progress.step
        killed, at = job.trainers[victim], time.monotonic()
        killed.send(signal.SIGKILL)
        await restart_gang(job, killed=killed)
        assert time.monotonic() - at < 10, "the other rank does not wait for a collective's timeout"
        seen = await job.operator.until(
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
        await job.train(rollouts=1)
        stopped, other = job.trainers[victim], job.trainers[1 - victim]
        stopped.send(signal.SIGSTOP)
        try:
            assert await other.exited(seconds=10) == ExitCode.FAILED
        finally:
            stopped.send(signal.SIGCONT)
        assert "nothing received for 3" in other.log()  # and more, as far as this machine is busy
        assert await stopped.exited(seconds=10) == ExitCode.FAILED, "it cannot go on alone"


async def held_weights(job: LocalJob, lineage: Lineage) -> list[tuple[Version, bytes]]:
    """What each rollout serves, now that the trainer is dead."""
    async with TicketGiver(job.trainer.address) as keys:
        held = [await weights_of(pod, lineage, keys) for pod in job.rollouts]
        return [(version, weights) for version, weights, _ in held]


def recovering(folder: Path, *, replicas: int, recover_from: str, max_steps: int) -> JobConfig:
    return job_config(
        algorithm={"max_steps": max_steps},
        membership={"settle": 5.0},
        trainer_replicas=replicas,
        checkpoint=CheckpointConfig(50, str(folder / "saved")),
        recover_from=recover_from,
    )


async def kill_and_look(job: LocalJob) -> tuple[Version, bytes]:
    """Kill the trainer, between checkpoints; the newest weights that a rollout holds then."""
    await job.train(rollouts=2)
    await job.steps(10, seconds=STEP_SECONDS)
    job.trainer.send(signal.SIGKILL)
    for pod in job.trainers:
        await pod.exited(seconds=20)
    return max(await held_weights(job, Lineage(1, 1)), key=lambda found: found[0])


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("recover_from", ["Rollouts", "Checkpoint"])
async def test_weights_come_back_from_rollouts_bit_by_bit_if_they_may(
    tmp_path: Path, replicas: int, recover_from: str
) -> None:
    config = recovering(tmp_path, replicas=replicas, recover_from=recover_from, max_steps=1_000_000)
    async with LocalJob(tmp_path, config) as job:
        version, weights = await kill_and_look(job)
        assert version.number > 10, "each step makes a version, and step 0 made the first"
        # It is to publish what it begins with, and to stop there.
        ending = recovering(tmp_path, replicas=replicas, recover_from=recover_from, max_steps=0)
        for pod in job.trainers:
            pod.variables[pod_contract.CONFIG] = json.dumps(encode(ending))
            await pod.start()
        seen = await job.operator.until(
            lambda s: s.boot == 2 and s.finished is not None, seconds=START_SECONDS
        )
        assert seen.snapshot.finished is not None
        for pod in job.trainers:
            pod.send(signal.SIGKILL)
            await pod.exited(seconds=20)
        published = (await held_weights(job, Lineage(1, 2)))[0]
        assert published[0].number == version.number + 1
        if recover_from == "Rollouts":
            assert seen.snapshot.finished.step == version.number, "no step is lost"
            assert published[1] == weights
            expected = "optimizer, random state and prompts are those of the checkpoint of step 0"
            assert expected in job.trainer.log()
        else:
            assert seen.snapshot.finished.step == 0, "the checkpoint is due at step 50"
            assert published[1] != weights
        assert [len(pod.logs) for pod in job.rollouts] == [1, 1]


async def test_training_goes_on_from_the_weights_that_came_back(tmp_path: Path) -> None:
    config = recovering(tmp_path, replicas=2, recover_from="Rollouts", max_steps=1_000_000)
    async with LocalJob(tmp_path, config) as job:
        version, _ = await kill_and_look(job)
        for pod in job.trainers:
            await pod.start()
        await job.reach(version.number + 5, seconds=START_SECONDS)
        assert min(losses(job.trainer)) == version.number + 1
        await job.operator.until(lambda s: in_sync(s, *job.rollouts), seconds=STEP_SECONDS)
        assert (await job.prompts()).balanced


DETERMINISTIC = {
    "max_steps": 40,
    "max_staleness": 0,
    "deterministic": True,
    "prompts_per_step": 8,
    "group_size": 8,
}


def deterministic(folder: Path) -> JobConfig:
    return job_config(
        algorithm=DETERMINISTIC,
        membership=FAST,
        checkpoint=CheckpointConfig(16, str(folder / "saved")),
    )


async def logged(pod: Pod, step: int) -> None:
    """Wait until it has trained `step`; the coordinator's stream shows that later."""
    async with asyncio.timeout(START_SECONDS):
        while step not in losses(pod):
            await asyncio.sleep(0.02)


async def trained(job: LocalJob) -> dict[int, object]:
    """The losses of all lives, once training is over; a step that was done again has the same."""
    await job.finished(seconds=START_SECONDS)
    found: dict[int, object] = {}
    for life in range(len(job.trainer.logs)):
        for step, value in losses(job.trainer, life).items():
            assert found.setdefault(step, value) == value, f"step {step} in life {life}"
    return found


async def test_losses_are_the_same_whichever_process_is_killed_in_between(tmp_path: Path) -> None:
    runs = {}
    for name in ("whole", "trainer", "rollout"):
        folder = tmp_path / name
        folder.mkdir()
        async with LocalJob(folder, deterministic(folder)) as job:
            await job.start(rollouts=2)
            await logged(job.trainer, 20)  # saved at 16, again at 32
            victim = {"trainer": job.trainer, "rollout": job.rollouts[0]}.get(name)
            if victim is not None:
                victim.send(signal.SIGKILL)
                await victim.exited(seconds=5)
                await victim.start()
            runs[name] = await trained(job)
            if name == "trainer":
                assert min(losses(job.trainer)) == 17, "steps after the checkpoint are done again"
    assert sorted(runs["whole"]) == list(range(1, 41))
    assert runs["trainer"] == runs["whole"]
    assert runs["rollout"] == runs["whole"]


@pytest.fixture
def small_volume(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "small"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(path)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a small tmpfs cannot be mounted here")
    yield path
    subprocess.run(["umount", "--lazy", str(path)], check=True)


async def test_a_full_disk_is_reported_and_training_continues(
    tmp_path: Path, small_volume: Path
) -> None:
    saved = small_volume / "saved"
    config = job_config(
        algorithm=ENDLESS, membership=FAST, checkpoint=CheckpointConfig(5, str(saved))
    )
    async with LocalJob(tmp_path, config) as job:
        await job.train(rollouts=1)
        await job.steps(5, seconds=STEP_SECONDS)
        filler = small_volume / "filler"
        with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(b"x" * 4096):
                pass
        seen = await job.operator.until(lambda s: s.progress.warning != "", seconds=STEP_SECONDS)
        assert "was not saved" in seen.snapshot.progress.warning
        await job.steps(5, seconds=STEP_SECONDS)
        assert (await job.trainer.metrics())["checkpoint_failures_total"] >= 1
        filler.unlink()
        await job.operator.until(lambda s: s.progress.warning == "", seconds=STEP_SECONDS)
        assert not list(saved.glob(".step-*.old"))
