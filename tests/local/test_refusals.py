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
from tests.local.harness import FAST, LocalJob
from tests.local.pods import TOKENS
from tests.unit.rollcall_runtime.jobs import job_config

pytestmark = pytest.mark.slow

MEMBER_TOKEN = TOKENS[pod_contract.MEMBER_TOKEN_FILE]


def completion(*, job_uid: str) -> bytes:
    sample = Sample((3, 2), (-1.0, -1.0), (0, 0), 1.0)
    version, member = Version(Lineage(1, 1), 0), MemberId("unknown-pod", "unknown-boot")
    return dumps(Completion(job_uid, member, "1.1.999999", version, (sample,))).encode()


async def test_pushes_and_completions_that_must_not_count(tmp_path: Path) -> None:
    config = job_config(algorithm={"max_steps": 1_000_000}, membership=FAST)
    async with LocalJob(tmp_path, config) as job:
        await job.start(rollouts=1)
        await job.push_roster(EpochCause.MEMBERS_JOINED)
        await job.reach(3, seconds=90)
        operator, address = job.operator, job.trainer.address

        lost = operator.roster(EpochCause.MEMBER_LOST)
        for token in ("guess", MEMBER_TOKEN):
            assert (await operator.put(lost, token=token))[0] == 401
        status, body = await operator.put(operator.roster(EpochCause.MEMBER_LOST, epoch=1))
        assert (status, body["epoch"]) == (409, 2)
        without_members = replace(lost, members=())
        assert (await operator.put(without_members))[0] == 409, "other members"
        same = operator.roster(EpochCause.MEMBERS_JOINED)
        assert (await operator.put(same))[0] == 200, "the same roster again"

        async with aiohttp.ClientSession() as session:
            url = (
                f"http://{address}:{pod_contract.COMPLETIONS_PORT}{pod_contract.COMPLETIONS_ROUTE}"
            )
            good = {"Authorization": f"Bearer {MEMBER_TOKEN}"}
            for body, headers, expected in (
                (completion(job_uid=config.uid), {}, 401),
                (completion(job_uid=config.uid), good, 409),
                (completion(job_uid="another"), good, 409),
                (b"{}", good, 400),
            ):
                async with session.post(url, data=body, headers=headers) as answer:
                    assert answer.status == expected
            stream = (
                f"http://{address}:{pod_contract.MEMBERSHIP_PORT}{pod_contract.MEMBER_STREAM_ROUTE}"
            )
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await session.ws_connect(stream)
            assert refused.value.status == 401

        counted = await job.trainer.metrics()
        assert counted["refused_total{unauthenticated}"] == 4
        assert counted["refused_total{stale_roster}"] == 2
        assert counted["refused_total{duplicate_completion}"] == 1
        assert counted["refused_total{wrong_job_completion}"] == 1
        assert counted["refused_total{malformed}"] == 1
        assert operator.last.roster_epoch == 2
        assert (await job.prompts()).balanced
        await job.steps(3, seconds=30)


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
