"""Whatever happens to rollouts or trainer, every survivor serves one whole version, and the next
publication is as quick as before.
"""

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from rollcall import Outcome, RollcallError
from rollcall_protocol.wire.external_trainer import (
    Published,
    PublishWeights,
    WeightsWithdrawn,
    WithdrawWeights,
)
from tests.process import slow_weights
from tests.process.external_job import PROMPTS, ExternalJob, external_job
from tests.process.harness import FAST
from tests.unit.rollcall_runtime.jobs import external_job_config

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SLOW = 0.6  # seconds of each stage and of each commit
LATER = 3.0  # seconds that the publication after a fault may take beyond an undisturbed one
MEMBERSHIP = {**FAST, "heartbeat": 0.2, "suspect_after": 1.0}
TIMES = int(os.environ.get("FAULT_TIMES", "2"))

Fault = Callable[[ExternalJob, "asyncio.Task[Outcome]"], Awaitable[None]]


async def killed_before(job: ExternalJob, _: "asyncio.Task[Outcome]") -> None:
    await job.kill(job.job.rollouts[0])


async def killed_in_stage(job: ExternalJob, _: "asyncio.Task[Outcome]") -> None:
    await asyncio.sleep(SLOW / 2)
    await job.kill(job.job.rollouts[0])


async def killed_in_commit(job: ExternalJob, _: "asyncio.Task[Outcome]") -> None:
    await asyncio.sleep(1.5 * SLOW)
    await job.kill(job.job.rollouts[0])


async def stopped(job: ExternalJob, _: "asyncio.Task[Outcome]") -> None:
    pod = job.job.rollouts[0]
    pod.send(signal.SIGSTOP)
    await asyncio.sleep(4 * MEMBERSHIP["suspect_after"])
    pod.send(signal.SIGCONT)


async def added(job: ExternalJob, _: "asyncio.Task[Outcome]") -> None:
    await job.add()


async def added_and_killed(job: ExternalJob, _: "asyncio.Task[Outcome]") -> None:
    await job.kill(await job.add())


async def all_lost_and_one_comes(job: ExternalJob, _: "asyncio.Task[Outcome]") -> None:
    for pod in list(job.job.rollouts):
        await job.kill(pod)
    await job.add()


FAULTS: list[Fault] = [
    killed_before,
    killed_in_stage,
    killed_in_commit,
    stopped,
    added,
    added_and_killed,
    all_lost_and_one_comes,
]


async def settled(job: ExternalJob) -> None:
    """Wait until all rollouts that there are serve the newest version."""
    async with asyncio.timeout(60):
        while True:
            states = {m.pod_uid: (m.state, m.version) for m in job.job.operator.last.members}
            version = job.job.operator.last.progress.weight_version
            if all(states.get(pod.uid) == ("InSync", version) for pod in job.job.rollouts):
                return
            await asyncio.sleep(0.05)


async def publish(job: ExternalJob, seed: int) -> tuple[Outcome, float]:
    """Publish; the outcome, and seconds."""
    began = time.monotonic()
    outcome = await job.call(job.rollcall.publish, job.weights(seed), seed)
    return outcome, time.monotonic() - began


async def check_held(job: ExternalJob, seed: int, outcome: Outcome) -> None:
    """All rollouts hold every tensor of this publication, and no other."""
    assert set(outcome.members) == {pod.name for pod in job.job.rollouts}
    wanted = job.weights(seed)
    for tensors in await job.held(version=outcome.version):
        for name, tensor in wanted.items():
            assert torch.equal(tensors[name], tensor), name


@pytest.mark.parametrize("engine", ["gloo", "nixl"])
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
async def test_survivors_serve_one_whole_version(tmp_path: Path, fault: Fault, engine: str) -> None:
    config = external_job_config(membership=MEMBERSHIP, weight_sync={"engine": engine})
    slow = {slow_weights.STAGE: str(SLOW), slow_weights.COMMIT: str(SLOW)}
    async with external_job(
        tmp_path, config=config, imports=slow_weights.__name__, variables=slow
    ) as job:
        await publish(job, 0)
        await settled(job)
        _, undisturbed = await publish(job, 1)
        seed = 1
        for _ in range(TIMES):
            seed += 1
            publishing = asyncio.create_task(
                job.call(job.rollcall.publish, job.weights(seed), seed)
            )
            await fault(job, publishing)
            outcome = await publishing
            while len(job.job.rollouts) < 2:  # what the operator does
                await job.add()
            await settled(job)
            groups = await job.call(job.rollcall.generate, PROMPTS * 4, 2, max_tokens=5)
            assert job.worst_logprob(groups, job.weights(seed)) < 1e-4
            after, seconds = await publish(job, seed := seed + 1)
            assert seconds < undisturbed + LATER
            assert after.version > outcome.version
        await check_held(job, seed, after)


@pytest.mark.parametrize("moment", [SLOW / 2, 1.5 * SLOW], ids=["stage", "commit"])
async def test_a_trainer_that_is_killed_goes_on_at_a_lower_step(
    tmp_path: Path, moment: float
) -> None:
    slow: dict[str, Any] = {slow_weights.STAGE: str(SLOW), slow_weights.COMMIT: str(SLOW)}
    config = external_job_config(membership=MEMBERSHIP)
    async with external_job(
        tmp_path, config=config, imports=slow_weights.__name__, variables=slow
    ) as job:
        before, undisturbed = await publish(job, 10)
        publishing = asyncio.create_task(publish(job, 11))
        await asyncio.sleep(moment)
        os.kill(job.rollcall.coordinator_pid, signal.SIGKILL)
        with pytest.raises(RollcallError, match="the coordinator's process has ended"):
            await publishing
        await job.call(job.rollcall.close)
        await job.open()
        outcome, seconds = await publish(job, 5)
        assert outcome.version > before.version
        assert seconds < undisturbed + LATER
        await settled(job)
        groups = await job.call(job.rollcall.generate, PROMPTS * 4, 2, max_tokens=5)
        assert job.worst_logprob(groups, job.weights(5)) < 1e-4
        after, _ = await publish(job, 6)
        await check_held(job, 6, after)


async def test_a_publication_that_the_program_leaves_ends_before_the_next(tmp_path: Path) -> None:
    slow = {slow_weights.STAGE: str(SLOW), slow_weights.COMMIT: str(SLOW)}
    config = external_job_config(membership=MEMBERSHIP)
    async with external_job(
        tmp_path, config=config, imports=slow_weights.__name__, variables=slow
    ) as job:
        first, _ = await publish(job, 0)
        trainer = job.rollcall
        await job.call(trainer._process.ask, WithdrawWeights, WeightsWithdrawn)
        specs, nbytes = trainer._weights.write(job.weights(1))
        with pytest.raises(TimeoutError):
            await job.call(
                trainer._process.ask,
                lambda number: PublishWeights(number, 1, specs, nbytes),
                Published,
                timeout=SLOW / 2,
            )
        outcome, _ = await publish(job, 2)
        assert outcome.version == first.version + 2
        await check_held(job, 2, outcome)
