"""Rollouts that only receive, each a process of its own, and a trainer in this one."""

import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import torch

from rollcall_protocol.wire.roster import EpochCause
from tests.process.external_job import ExternalJob, external_job
from tests.process.pods import Pod

TENSOR_BYTES = 32 << 20


@asynccontextmanager
async def receiving_rollouts(count: int) -> AsyncIterator[ExternalJob]:
    """A job with so many of them on its roster."""
    with tempfile.TemporaryDirectory() as folder:
        async with external_job(Path(folder), rollouts=0) as job:
            for _ in range(count):
                await add_rollout(job)
            yield job


async def add_rollout(job: ExternalJob) -> Pod:
    """One more."""
    pod = job.job.place()
    pod.command = [sys.executable, "-m", "hack.bench.own_trainer.receiver"]
    await pod.start()
    await job.job.push_roster(EpochCause.MEMBERS_JOINED)
    return pod


def weights(nbytes: int) -> dict[str, torch.Tensor]:
    """A model in bfloat16, with values other than 0."""
    count = TENSOR_BYTES // 2
    return {
        f"layer.{number}": torch.full((count,), float(number + 1), dtype=torch.bfloat16)
        for number in range(nbytes // TENSOR_BYTES)
    }
