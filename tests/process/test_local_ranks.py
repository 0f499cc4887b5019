"""A trainer of two pods with two ranks each: one gang, whichever rank fails."""

import asyncio
import json
import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from rollcall_protocol import pod_contract
from rollcall_protocol.job_config import CheckpointConfig, JobConfig
from rollcall_protocol.pod_contract import ExitCode, weights_port
from rollcall_protocol.wire.roster import EpochCause
from rollcall_runtime.sync.errors import CatchUpError
from rollcall_runtime.sync.weights.catch_up import fetch
from rollcall_runtime.sync.weights.staging import StagingArea
from tests.process.harness import ENDLESS, FAST, START_SECONDS, STEP_SECONDS, LocalJob, in_sync
from tests.process.newcomer import catch_up_of
from tests.process.pods import Pod
from tests.unit.rollcall_runtime.jobs import job_config

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

# Five processes on two busy cores; a killed one is found by its closed connections.
PATIENT = {**FAST, "suspect_after": 10.0}
EXIT_SECONDS = 30.0
FETCH_SECONDS = 30.0


def two_by_two(folder: Path) -> JobConfig:
    return job_config(
        algorithm=ENDLESS,
        membership=PATIENT,
        trainer_replicas=2,
        trainer_processes=2,
        checkpoint=CheckpointConfig(5, str(folder / "saved")),
    )


def process_of(pod: Pod, local_rank: int) -> int:
    """The pid of a rank's process, which is a child of the pod's first one."""
    assert pod.process is not None
    own = f"{pod_contract.LOCAL_RANK}={local_rank}".encode()
    children = Path(f"/proc/{pod.process.pid}/task/{pod.process.pid}/children").read_text()
    (found,) = (
        int(pid)
        for pid in children.split()
        if own in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    )
    return found


def ranks_in(pod: Pod) -> set[int]:
    """The ranks whose lines are in the pod's log."""
    lines = (json.loads(line) for line in pod.log().splitlines() if line[:1] == "{")
    return {line["rank"] for line in lines if "rank" in line}


async def a_checkpoint(folder: Path) -> int:
    """The step of the newest checkpoint, once there is one."""
    async with asyncio.timeout(STEP_SECONDS):
        while not (found := sorted(folder.glob("step-*"))):
            await asyncio.sleep(0.1)
    return int(found[-1].name.removeprefix("step-"))


async def assert_all_parts_are_served(job: LocalJob) -> None:
    """A newcomer can put a version together of the parts of all ranks."""
    donor = "+".join(
        f"{pod.address}:{weights_port(local_rank)}" for pod in job.trainers for local_rank in (0, 1)
    )
    async with asyncio.timeout(FETCH_SECONDS):
        while True:
            newcomer = job.place()
            await job.push_roster(EpochCause.MEMBERS_JOINED)
            asked = await catch_up_of(job, newcomer, seconds=FETCH_SECONDS)
            assert asked.donors == (donor,)
            with suppress(CatchUpError):  # a step that had begun replaced the version
                await fetch(
                    version=asked.version,
                    manifest=asked.manifest,
                    donors=[donor],
                    tickets=asked.tickets,
                    stage=StagingArea(),
                )
                return


async def test_a_killed_rank_ends_all_ranks_and_the_gang_starts_again(tmp_path: Path) -> None:
    async with LocalJob(tmp_path, two_by_two(tmp_path)) as job:
        await job.train(rollouts=1)
        assert [ranks_in(pod) for pod in job.trainers] == [{0, 1}, {2, 3}]
        first, second = job.trainers
        await a_checkpoint(tmp_path / "saved")
        os.kill(process_of(second, 1), signal.SIGKILL)
        assert await second.exited(seconds=EXIT_SECONDS) == 128 + signal.SIGKILL
        assert await first.exited(seconds=EXIT_SECONDS) == ExitCode.FAILED
        saved = await a_checkpoint(tmp_path / "saved")
        for pod in job.trainers:
            await pod.start()
        await job.operator.until(
            lambda s: s.boot == 2 and in_sync(s, *job.rollouts), seconds=START_SECONDS
        )
        assert job.operator.last.progress.step >= saved
        await job.steps(5, seconds=STEP_SECONDS)
        assert len(job.rollouts[0].logs) == 1, "the rollout never started again"


async def test_ranks_serve_their_parts_and_stop_together(tmp_path: Path) -> None:
    async with LocalJob(tmp_path, two_by_two(tmp_path)) as job:
        await job.train(rollouts=1)
        assert (await job.trainer.metrics())["step"] >= 5, "the pod's first rank serves metrics"
        job.rollouts[0].send(signal.SIGKILL)
        await job.operator.until(lambda s: bool(s.progress.paused), seconds=STEP_SECONDS)
        await assert_all_parts_are_served(job)  # of a version that stays, since training waits
        for pod in job.trainers:
            pod.send(signal.SIGTERM)
        for pod in job.trainers:
            assert await pod.exited(seconds=EXIT_SECONDS) == ExitCode.OK
        assert "stopped by SIGTERM after step" in job.trainer.log()
        assert list((tmp_path / "saved").glob("step-*")), "what would have been lost is saved"
