"""Deltas in a whole job: less is sent, and every rollout ends with the newest weights."""

from pathlib import Path

import pytest

from rollcall_protocol.config import DeltaConfig, OptimizerConfig
from rollcall_protocol.messages import SessionCause
from tests.local.harness import FAST, LocalJob
from tests.unit.rollcall_runtime.jobs import job_config

pytestmark = pytest.mark.slow

STEPS = 20


async def sent_bytes(folder: Path, *, delta: bool) -> float:
    """Of a job that ends with its newest weights on both rollouts."""
    folder.mkdir()
    config = job_config(
        # So small that few bytes of 32-bit weights change.
        algorithm={"max_steps": STEPS, "optimizer": OptimizerConfig("adamw", 1e-11)},
        membership=FAST, weight_sync={"delta": DeltaConfig() if delta else None},
    )  # fmt: skip
    async with LocalJob(folder, config) as job:
        await job.start(rollouts=2)
        seen = await job.roll.until(lambda s: s.finished is not None, seconds=120)
        assert [member.version for member in seen.snapshot.members] == [STEPS] * 2
        assert seen.snapshot.session is not None
        assert seen.snapshot.session.cause is not SessionCause.ENGINE_ERROR
        return (await job.trainer.metrics())["weight_sync_bytes_total"]


async def test_less_is_sent_when_only_changes_are(tmp_path: Path) -> None:
    whole = await sent_bytes(tmp_path / "whole", delta=False)
    deltas = await sent_bytes(tmp_path / "deltas", delta=True)
    assert deltas < 0.5 * whole
