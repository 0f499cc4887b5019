"""Real workers: what rollouts sampled is recorded whole, also the rows of another trainer rank."""

import asyncio
from pathlib import Path
from urllib.request import urlopen

import pytest

from rollcall_protocol import pod_contract
from rollcall_protocol.job_config import (
    RewardPart,
    RewardScoringConfig,
    SampleRecordingConfig,
)
from rollcall_protocol.sample_query import SampleQuery
from rollcall_protocol.sample_record import SampleRecord, read_records
from tests.process.harness import FAST, LocalJob
from tests.unit.rollcall_runtime.jobs import job_config


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.slow)])
async def test_every_response_of_a_step_is_recorded_with_what_its_tokens_are(
    tmp_path: Path, ranks: int
) -> None:
    parts = (RewardPart("reverse", "rollcall_runtime.tasks.reverse:reward", 0.5),)
    config = job_config(
        algorithm={"max_steps": 4},
        membership=FAST,
        trainer_replicas=ranks,
        reward_function="",
        reward_scoring=RewardScoringConfig(parts=parts),
        samples=SampleRecordingConfig(share=0.0, all_every_steps=2),
    )

    def asked(query: SampleQuery) -> list[SampleRecord]:
        url = f"http://{job.trainer.address}:{pod_contract.METRICS_PORT}{query.route()}"
        with urlopen(url, timeout=10) as answer:
            return read_records(answer.read())

    async with LocalJob(tmp_path, config) as job:
        await job.start(rollouts=1)
        await job.finished(seconds=60)
        found: list[SampleRecord] = []
        async with asyncio.timeout(20):
            while len(found) < 256:  # a thread of its own writes them
                await asyncio.sleep(0.2)
                found = await asyncio.to_thread(asked, SampleQuery(step=4, limit=256))
        older = await asyncio.to_thread(asked, SampleQuery(order="spread", limit=4))
    assert {record.step for record in older} == {2, 4}
    assert len({(record.prompt, record.sample) for record in found}) == 256
    for record in found:
        assert record.reward == pytest.approx(0.5 * record.parts["reverse"], rel=1e-4)
        assert len(record.mismatch) == len(record.tokens) > 0, "whichever rank computed them"
        assert None not in record.mismatch
        assert record.seconds > 0
        assert 0 <= record.versions[0][0] <= record.trained_version == 3
    for record in found:
        if record.versions == ((3, len(record.tokens)),):
            apart = max(abs(value or 0.0) for value in record.mismatch)
            assert apart < 0.01, "trainer and rollout have the same weights"
