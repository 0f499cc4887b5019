"""Agents of a whole job: its front answers them, whatever happens to rollouts and coordinator."""

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from rollcall_protocol import pod_contract
from rollcall_protocol.data_config import FRONT, DataConfig, DataSource
from rollcall_protocol.job_config import EngineRef, OptimizerConfig
from tests.process.conftest import forked_workers, one_runtime
from tests.process.engines.tiny_models import write_tiny_model
from tests.process.harness import ENDLESS, FAST, START_SECONDS, STEP_SECONDS, LocalJob, in_sync
from tests.process.pods import Pod
from tests.unit.rollcall_runtime.jobs import job_config

__all__ = ["forked_workers", "one_runtime"]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(420),
    pytest.mark.asyncio(loop_scope="session"),
]

KEY = "key-of-the-agents-0"
STREAMS, TOKENS = 64, 60
AT_ONCE = 6  # streams that a rollout of `job_of` is sure to be answering; at most 8, others wait
# Weights that stay the same to the last digit that counts: a request with a seed has one answer.
STILL = {
    **ENDLESS,
    "group_size": 2,
    "prompts_per_step": 2,
    "max_concurrent_rollouts": 4,
    "optimizer": OptimizerConfig(name="adamw", learning_rate=1e-12),
}


def job_of(folder: Path, **changes: Any) -> LocalJob:
    config = job_config(
        model=str(write_tiny_model(folder / "model")),
        reward_function="rollcall_runtime.tasks.repeat:reward",
        algorithm=STILL,
        membership=FAST,
        front=True,
        tls=True,
        **changes,
    )
    engine = EngineRef("transformers", {"maxTokens": 8, "concurrency": 1})
    return LocalJob(folder, config, rollout_engine=engine)


def named(number: int) -> dict[str, str]:
    return {"Authorization": f"Bearer {KEY}", "X-Rollcall-Trajectory": f"agent-{number}"}


def task(number: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"task {number // 2}"}]


class Agents:
    """Asks the front of a job."""

    def __init__(self, job: LocalJob, front: Pod, session: aiohttp.ClientSession) -> None:
        self._model, self._session = job.config.model, session
        self._url = f"http://{front.address}:{pod_contract.FRONT_PORT}/v1"
        self._answered: set[int] = set()  # those whose first tokens have come, and not their end

    async def stream(self, number: int) -> tuple[int, ...]:
        """The tokens of one answer, whose seed is `number`."""
        body = {
            "model": self._model,
            "messages": [{"role": "user", "content": f"agent {number}"}],
            "max_completion_tokens": TOKENS,
            "seed": number,
            "stream": True,
            "return_token_ids": True,
        }
        tokens: list[int] = []
        headers = {"Authorization": f"Bearer {KEY}"}
        async with self._session.post(
            f"{self._url}/chat/completions", json=body, headers=headers
        ) as answer:
            assert answer.status == 200, await answer.text()
            async for line in answer.content:
                text = line.decode().strip().removeprefix("data: ")
                if text == "[DONE]":
                    self._answered.discard(number)
                    return tuple(tokens)
                if text:
                    event: dict[str, Any] = json.loads(text)
                    assert "error" not in event
                    tokens += event["choices"][0]["token_ids"]
                    self._answered.add(number)
        raise AssertionError("the stream ended early")

    async def are_answered(self, count: int) -> None:
        """Wait until so many streams are in their middle."""
        async with asyncio.timeout(STEP_SECONDS):
            while len(self._answered) < count:
                await asyncio.sleep(0.005)

    async def turn(self, number: int, messages: list[dict[str, str]]) -> None:
        """An answer of a trajectory, and what its agent says next, behind `messages`."""
        body = {"model": self._model, "messages": messages, "max_tokens": 6}
        async with self._session.post(
            f"{self._url}/chat/completions", json=body, headers=named(number)
        ) as answer:
            assert answer.status == 200, await answer.text()
            said = (await answer.json())["choices"][0]["message"]["content"]
        messages += [{"role": "assistant", "content": said}, {"role": "user", "content": "on"}]

    async def reward(self, number: int) -> None:
        """The end of a trajectory: of the two of a task the second is right."""
        url = f"{self._url}/trajectories/agent-{number}/reward"
        given = {"reward": float(number % 2), "group": f"task-{number // 2}"}
        async with self._session.post(url, json=given, headers=named(number)) as answer:
            assert answer.status == 200, await answer.text()

    async def rewarded(self, number: int) -> None:
        """Two turns on a task, then a reward."""
        messages = task(number)
        for _ in range(2):
            await self.turn(number, messages)
        await self.reward(number)

    async def all(self) -> list[tuple[int, ...]]:
        async with asyncio.timeout(2 * STEP_SECONDS):
            return await asyncio.gather(*map(self.stream, range(STREAMS)))


async def test_a_killed_rollout_and_a_restarted_coordinator_fail_no_request(tmp_path: Path) -> None:
    async with job_of(tmp_path) as job, aiohttp.ClientSession() as session:
        await job.start(rollouts=2)
        front = await job.start_front(KEY)
        await job.operator.until(lambda s: in_sync(s, *job.rollouts), seconds=START_SECONDS)
        await front.reaches("front_rollouts", 2, seconds=STEP_SECONDS)
        agents = Agents(job, front, session)
        undisturbed = await agents.all()
        assert len(set(undisturbed)) == STREAMS

        lost = job.rollouts[0]
        disturbed = asyncio.create_task(agents.all())
        await agents.are_answered(2 * AT_ONCE)
        lost.send(signal.SIGKILL)
        assert await disturbed == undisturbed, "each answer goes on where it was cut off"
        moved = (await front.metrics())["front_moved_requests_total"]
        assert moved >= STREAMS // 4

        job.trainer.send(signal.SIGKILL)
        await job.trainer.exited(seconds=STEP_SECONDS)
        assert await agents.all() == undisturbed, "rollouts serve while there is no coordinator"
        await job.trainer.start()
        await job.operator.until(lambda s: in_sync(s, job.rollouts[1]), seconds=START_SECONDS)
        assert await agents.all() == undisturbed


async def test_a_killed_front_leaves_its_rollouts_no_work_and_its_successor_answers(
    tmp_path: Path,
) -> None:
    async with job_of(tmp_path) as job, aiohttp.ClientSession() as session:
        await job.start(rollouts=1)
        (rollout,), front = job.rollouts, await job.start_front(KEY)
        await job.operator.until(lambda s: in_sync(s, rollout), seconds=START_SECONDS)
        await front.reaches("front_rollouts", 1, seconds=STEP_SECONDS)
        agents = Agents(job, front, session)
        undisturbed = await agents.all()

        cut = [asyncio.create_task(agents.stream(number)) for number in range(STREAMS)]
        await agents.are_answered(AT_ONCE)
        front.send(signal.SIGKILL)
        await front.exited(seconds=STEP_SECONDS)
        async with asyncio.timeout(STEP_SECONDS):
            ends = await asyncio.gather(*cut, return_exceptions=True)
            assert sum(isinstance(end, aiohttp.ClientError) for end in ends) >= STREAMS // 4
            while (await rollout.metrics())["rollout_front_requests"]:
                await asyncio.sleep(0.1)

        await front.start()
        await front.reaches("front_rollouts", 1, seconds=STEP_SECONDS)
        assert await agents.all() == undisturbed
        assert (await job.prompts()).balanced


async def test_a_job_learns_from_its_agents_trajectories(tmp_path: Path) -> None:
    data = DataConfig(sources=(DataSource(FRONT),))
    async with job_of(tmp_path, data=data) as job, aiohttp.ClientSession() as session:
        await job.start(rollouts=1)
        front = await job.start_front(KEY)
        await job.operator.until(lambda s: in_sync(s, *job.rollouts), seconds=START_SECONDS)
        await front.reaches("front_rollouts", 1, seconds=STEP_SECONDS)
        agents = Agents(job, front, session)
        for step in range(3):  # a step needs two groups of two
            numbers = range(4 * step, 4 * step + 4)
            async with asyncio.timeout(STEP_SECONDS):
                await asyncio.gather(*map(agents.rewarded, numbers))
            await job.reach(step + 1, seconds=STEP_SECONDS)
        figures = job.step_figures()[0]
        prompts = await job.prompts()
        assert prompts.balanced
        assert (prompts.dispatched, prompts.accepted) == (6, 6)
        assert (await front.metrics())["front_ended_trajectories_total{counted}"] == 12
        assert figures["actor/pg_loss"] == figures["actor/pg_loss"], "a number"


async def test_a_trajectory_outlives_the_pod_that_answered_it(tmp_path: Path) -> None:
    data = DataConfig(sources=(DataSource(FRONT),))
    numbers = range(4)  # a step needs two groups of two
    async with job_of(tmp_path, data=data) as job, aiohttp.ClientSession() as session:
        await job.start(rollouts=1)
        fronts = [await job.start_front(KEY) for _ in range(2)]
        await job.operator.until(lambda s: in_sync(s, *job.rollouts), seconds=START_SECONDS)
        for front in fronts:
            await front.reaches("front_rollouts", 1, seconds=STEP_SECONDS)
        first, second = (Agents(job, front, session) for front in fronts)
        said = {number: task(number) for number in numbers}
        async with asyncio.timeout(2 * STEP_SECONDS):
            for agents in (first, second, first):
                await asyncio.gather(*(agents.turn(n, said[n]) for n in numbers))
            fronts[0].send(signal.SIGKILL)
            await fronts[0].exited(seconds=STEP_SECONDS)
            await asyncio.gather(*(second.turn(n, said[n]) for n in numbers))
            await fronts[0].start()
            await fronts[0].reaches("front_rollouts", 1, seconds=STEP_SECONDS)
            await asyncio.gather(*(first.turn(n, said[n]) for n in numbers))
            await asyncio.gather(*map(second.reward, numbers))
        await job.reach(1, seconds=STEP_SECONDS)
        figures, prompts = job.step_figures()[0], await job.prompts()
    assert (prompts.dispatched, prompts.accepted) == (2, 2)
    assert figures["response_length/min"] > 5 * 6, "five answers, and what was said between them"
