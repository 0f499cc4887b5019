"""Leaving by a call, a whole life without an operator, and a probe that knows old from current."""

import asyncio
import signal
from pathlib import Path

import aiohttp
import pytest

from rollcall_protocol import pod_contract
from rollcall_protocol.wire.job_snapshot import MemberState
from tests.process.harness import ENDLESS, FAST, START_SECONDS, STEP_SECONDS, LocalJob, in_sync
from tests.process.pods import Pod
from tests.unit.rollcall_runtime.jobs import job_config

pytestmark = pytest.mark.slow


async def readiness(pod: Pod) -> tuple[int, str]:
    """What the kubelet's probe would get; 0 while the port is closed."""
    url = f"http://{pod.address}:{pod_contract.METRICS_PORT}/readyz"
    try:
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            return answer.status, (await answer.text()).strip()
    except aiohttp.ClientError:
        return 0, ""


async def becomes_ready(pod: Pod) -> set[str]:
    """Wait for a probe that passes; what the others said before it."""
    said: set[str] = set()
    async with asyncio.timeout(START_SECONDS):
        while True:
            status, text = await readiness(pod)
            if status == 200:
                return said
            said.add(text)
            await asyncio.sleep(0.02)


async def test_a_rollout_drained_by_a_call_finishes_its_work_and_stays_out(tmp_path: Path) -> None:
    async with LocalJob(tmp_path, job_config(algorithm=ENDLESS, membership=FAST)) as job:
        await job.train(rollouts=2)
        leaving = job.rollouts[0]
        assert await becomes_ready(leaving) == set()
        url = f"http://{leaving.address}:{pod_contract.AGENT_PORT}{pod_contract.DRAIN_ROUTE}?reason=spot+notice"
        token = {"Authorization": f"Bearer {leaving.token(job.config.uid)}"}
        async with aiohttp.ClientSession() as session, session.post(url, headers=token) as answer:
            assert answer.status == 202
        await job.operator.until(
            lambda s: any(
                m.pod_uid == leaving.uid and m.state is MemberState.GONE for m in s.members
            ),
            seconds=10,
        )
        await job.steps(10, seconds=STEP_SECONDS)
        assert leaving.running, "its pod would start it again"
        assert await readiness(leaving) == (503, "draining")
        assert job.operator.last.session is not None
        assert job.operator.last.session.members == 2
        leaving.send(signal.SIGTERM)
        assert await leaving.exited(seconds=10) == 0
        prompts = await job.prompts()
        assert prompts.balanced
        assert prompts.duplicate == 0, "what it had in hand was delivered or handed back"


async def test_without_an_operator_training_loses_a_rollout_and_has_it_back(
    tmp_path: Path,
) -> None:
    async with LocalJob(tmp_path, job_config(algorithm=ENDLESS, membership=FAST)) as job:
        await job.train(rollouts=3)
        await job.operator.stop()
        victim = job.rollouts[0]
        step = job.operator.last.progress.step
        victim.send(signal.SIGKILL)
        await job.trainer.reaches("members", 3, seconds=10)
        await job.trainer.reaches("step", step + 20, seconds=STEP_SECONDS)
        assert await victim.exited(seconds=5) == -signal.SIGKILL

        await victim.start()
        said = await becomes_ready(victim)
        assert said - {""}, "it was up and said no, whatever its pod's gate says"
        await victim.reaches("rollout_samples_total", 64, seconds=STEP_SECONDS)
        values = await victim.metrics()
        trainer = await job.trainer.metrics()
        assert trainer["weight_version"] - values["weight_version"] <= 2

        job.operator.history.clear()
        job.operator.start()
        seen = await job.operator.until(lambda s: in_sync(s, *job.rollouts), seconds=STEP_SECONDS)
        assert seen.snapshot.roster_epoch == 1, "no other roster was pushed"
        assert seen.snapshot.session is not None
        assert seen.snapshot.session.members == 4
        assert (await job.prompts()).balanced
