"""Requests without a token, or of a former epoch, change nothing and are counted."""

import time
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest

from rollcall_protocol import pod_contract
from rollcall_protocol.wire.ids import Lineage, MemberId, Version
from rollcall_protocol.wire.messages import Completion, Sample, dumps
from rollcall_protocol.wire.roster import EpochCause
from tests.process.harness import FAST, LocalJob, in_sync
from tests.process.pods import ISSUER, Pod
from tests.unit.rollcall_runtime.jobs import job_config

pytestmark = pytest.mark.slow


def completion(pod: Pod, *, job_uid: str) -> bytes:
    """A completion of a lease that was never given, in the name of `pod`."""
    sample = Sample((3, 2), (-1.0, -1.0), (0, 0), 1.0)
    version, member = Version(Lineage(1, 1), 0), MemberId(pod.uid, "unknown-boot")
    return dumps(Completion(job_uid, member, "1.1.999999", version, (sample,))).encode()


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def test_pushes_and_completions_that_must_not_count(tmp_path: Path) -> None:
    config = job_config(algorithm={"max_steps": 1_000_000}, membership=FAST)
    async with LocalJob(tmp_path, config) as job:
        await job.start(rollouts=2)
        await job.push_roster(EpochCause.MEMBERS_JOINED)
        await job.reach(3, seconds=90)
        operator, (own, other) = job.operator, job.rollouts
        member = own.token(config.uid)

        lost = operator.roster(EpochCause.MEMBER_LOST)
        for token, status in (("guess", 401), (member, 403)):
            assert (await operator.put(lost, token=token))[0] == status
        status, body = await operator.put(operator.roster(EpochCause.MEMBER_LOST, epoch=1))
        assert (status, body["epoch"]) == (409, 2)
        without_members = replace(lost, members=())
        assert (await operator.put(without_members))[0] == 409, "other members"
        same = operator.roster(EpochCause.MEMBERS_JOINED)
        assert (await operator.put(same))[0] == 200, "the same roster again"

        base = f"http://{job.trainer.address}"
        route = f":{pod_contract.COMPLETIONS_PORT}{pod_contract.COMPLETIONS_ROUTE}"
        outsider = ISSUER.pod_token(job_uid=config.uid, pod="outsider", pod_uid="uid-outsider")
        foreign = ISSUER.pod_token(job_uid="another", pod=own.name, pod_uid=own.uid)
        expired = ISSUER.pod_token(job_uid=config.uid, pod=own.name, pod_uid=own.uid, seconds=-60)
        async with aiohttp.ClientSession() as session:
            for sent, headers, expected in (
                (completion(own, job_uid=config.uid), {}, 401),
                (completion(own, job_uid=config.uid), bearer(foreign), 401),
                (completion(own, job_uid=config.uid), bearer(expired), 401),
                (completion(own, job_uid=config.uid), bearer(outsider), 403),
                (completion(other, job_uid=config.uid), bearer(member), 403),
                (completion(own, job_uid=config.uid), bearer(member), 409),
                (completion(own, job_uid="another"), bearer(member), 409),
                (b"{}", bearer(member), 400),
            ):
                async with session.post(base + route, data=sent, headers=headers) as answer:
                    assert answer.status == expected
            stream = f"{base}:{pod_contract.MEMBERSHIP_PORT}{pod_contract.MEMBER_STREAM_ROUTE}"
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await session.ws_connect(stream)
            assert refused.value.status == 401

        counted = await job.trainer.metrics()
        assert counted["refused_total{malformed_token}"] == 1
        assert counted["refused_total{no_token}"] == 2
        assert counted["refused_total{wrong_audience}"] == 1
        assert counted["refused_total{expired}"] == 1
        assert counted["refused_total{not_allowed}"] == 2
        assert counted["refused_total{impersonated}"] == 1
        assert counted["refused_total{stale_roster}"] == 2
        assert counted["refused_total{duplicate_completion}"] == 1
        assert counted["refused_total{wrong_job_completion}"] == 1
        assert counted["refused_total{malformed}"] == 1
        assert operator.last.roster_epoch == 2
        assert (await job.prompts()).balanced
        await job.steps(3, seconds=30)


async def test_a_rollout_reads_its_token_again_and_so_outlives_the_first_one(
    tmp_path: Path,
) -> None:
    config = job_config(algorithm={"max_steps": 1_000_000}, membership=FAST)
    async with LocalJob(tmp_path, config) as job:
        await job.start(rollouts=1)
        rollout = job.place()
        path = Path(rollout.variables[pod_contract.TOKEN_DIR]) / pod_contract.TOKEN_FILE
        good = path.read_text()
        path.write_text(
            ISSUER.pod_token(job_uid=config.uid, pod=rollout.name, pod_uid=rollout.uid, seconds=-60)
        )
        await rollout.start()
        await job.push_roster(EpochCause.MEMBERS_JOINED)
        await rollout.logs_line("no stream to the coordinator", seconds=60)
        path.write_text(good)
        await job.operator.until(lambda s: in_sync(s, *job.rollouts), seconds=60)
        assert (await job.trainer.metrics())["refused_total{expired}"] >= 1
        assert len(rollout.logs) == 1, "it did not start again"


@pytest.mark.alone
async def test_the_coordinator_answers_in_milliseconds_while_it_trains(tmp_path: Path) -> None:
    config = job_config(algorithm={"max_steps": 1_000_000}, membership=FAST)
    async with LocalJob(tmp_path, config) as job:
        await job.start(rollouts=1)
        await job.reach(3, seconds=90)
        seconds = []
        async with aiohttp.ClientSession() as session:
            for _ in range(100):
                began = time.perf_counter()
                async with session.get(f"http://{job.trainer.address}:9090/healthz") as answer:
                    assert answer.status == 200
                seconds.append(time.perf_counter() - began)
        assert sorted(seconds)[50] < 0.05, sorted(seconds)
