"""A job whose endpoints speak TLS: all of it trains so, and who does not speak it is shut out."""

import asyncio
import datetime as dt
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import trustme

from rollcall_protocol import pod_contract
from rollcall_protocol.algorithm_settings import preset
from rollcall_protocol.job_config import JobConfig
from rollcall_protocol.wire.roster import EpochCause
from tests.certificates import authority, believe, show
from tests.process.harness import ENDLESS, FAST, START_SECONDS, STEP_SECONDS, LocalJob, in_sync
from tests.process.pods import Pod
from tests.unit.rollcall_runtime.jobs import job_config

pytestmark = pytest.mark.slow


def with_tls(**changes: Any) -> JobConfig:
    algorithm = {**ENDLESS, "settings": preset("grpo", kl_coefficient=1e-9)}
    return job_config(membership=FAST, algorithm=algorithm, tls=True, **changes)


def mounted(job: LocalJob, pod: Pod) -> Path:
    return job.folder / "mounted" / pod.uid


async def is_kept_out(job: LocalJob, newcomer: Pod, why: str) -> None:
    """The newcomer logs `why`, and does not join; the others train on."""
    await newcomer.logs_line(why, seconds=START_SECONDS)
    await job.steps(2, seconds=STEP_SECONDS)
    assert not in_sync(job.operator.last, newcomer)


async def test_ranks_rollouts_and_reference_use_tls_and_what_does_not_is_refused_and_counted(
    tmp_path: Path,
) -> None:
    async with LocalJob(tmp_path, with_tls(trainer_replicas=2), own_reference=True) as job:
        await job.train(rollouts=1)
        async with aiohttp.ClientSession() as session:
            for port in (pod_contract.MEMBERSHIP_PORT, pod_contract.COMPLETIONS_PORT):
                with pytest.raises(aiohttp.ClientError):
                    await session.get(f"http://{job.trainer.address}:{port}/")
            assert job.reference is not None
            endpoint = f"http://{job.reference.address}:{pod_contract.REFERENCE_PORT}/"
            with pytest.raises(aiohttp.ClientError):
                await session.get(endpoint)
        await job.trainer.reaches("refused_total{tls_handshake}", 2, seconds=10)
        await job.reference.reaches("refused_total{tls_handshake}", 1, seconds=10)
        await job.steps(1, seconds=STEP_SECONDS)


async def test_a_rollout_sends_nothing_to_a_coordinator_that_it_cannot_verify(
    tmp_path: Path,
) -> None:
    async with LocalJob(tmp_path, with_tls()) as job:
        await job.train(rollouts=1)
        newcomer = job.place()
        believe(mounted(job, newcomer), trustme.CA())
        await newcomer.start()
        await job.push_roster(EpochCause.MEMBERS_JOINED)
        await is_kept_out(job, newcomer, "certificate verify failed")
        believe(mounted(job, newcomer), trustme.CA(), authority())  # as the kubelet brings it
        await job.operator.until(lambda s: in_sync(s, newcomer), seconds=STEP_SECONDS)


async def test_a_new_certificate_is_shown_without_a_restart(tmp_path: Path) -> None:
    async with LocalJob(tmp_path, with_tls()) as job:
        await job.train(rollouts=1)
        newcomer, another = job.place(), trustme.CA()
        await job.push_roster(EpochCause.MEMBERS_JOINED)
        show(mounted(job, job.trainer) / "tls", job.trainer.address, signed_by=another)
        believe(mounted(job, newcomer), another)
        await newcomer.start()
        await job.operator.until(lambda s: in_sync(s, *job.rollouts), seconds=START_SECONDS)


async def test_a_certificate_that_expires_in_mid_run_keeps_out_newcomers_until_it_is_renewed(
    tmp_path: Path,
) -> None:
    async with LocalJob(tmp_path, with_tls()) as job:
        await job.train(rollouts=1)
        newcomer = job.place()
        await job.push_roster(EpochCause.MEMBERS_JOINED)  # by another connection
        shown, address = mounted(job, job.trainer) / "tls", job.trainer.address
        show(shown, address, until=dt.datetime.now(dt.UTC) - dt.timedelta(seconds=1))
        await asyncio.sleep(2.0)  # files are looked at once a second
        await newcomer.start()
        await is_kept_out(job, newcomer, "certificate has expired")
        show(shown, address)
        await job.operator.until(lambda s: in_sync(s, newcomer), seconds=START_SECONDS)
