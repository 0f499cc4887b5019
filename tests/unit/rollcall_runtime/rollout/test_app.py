"""Which of the user's code a rollout starts."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import pytest

from rollcall_protocol.job_config import EnvironmentConfig, JobConfig
from rollcall_runtime.rollout.app import UsersCode, start_users_code
from tests.unit.rollcall_runtime.jobs import external_job_config, job_config
from tests.unit.rollcall_runtime.rollout.fake_engine import FakeEngine, rollout_metrics


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """The commands of processes that were started."""
    commands: list[tuple[Any, ...]] = []
    start = asyncio.create_subprocess_exec

    async def spy(*command: Any, **options: Any) -> asyncio.subprocess.Process:
        commands.append(command)
        return await start(*command, **options)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", spy)
    return commands


async def started(job: JobConfig) -> UsersCode:
    async with AsyncExitStack() as closing:
        return await start_users_code(job, FakeEngine(), rollout_metrics(), closing)


async def test_a_builtin_trainers_rollout_starts_its_reward(begun: list[tuple[Any, ...]]) -> None:
    assert (await started(job_config())).conversations is None
    (command,) = begun
    assert "rollcall_runtime.tasks.reward_child" in command[2]


async def test_an_external_trainers_rollout_starts_no_process(
    begun: list[tuple[Any, ...]],
) -> None:
    environment = EnvironmentConfig(function="no_such_module:Game")
    code = await started(replace(external_job_config(), environment=environment))
    assert begun == []
    assert code.conversations is None
    with pytest.raises(RuntimeError, match="kind is External: rollouts score no samples"):
        await code.reward.score([1], [[2]], {})
