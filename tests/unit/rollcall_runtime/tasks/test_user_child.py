"""A process that runs the user's code ends quietly with its worker."""

import asyncio
import select
from pathlib import Path

import pytest

from rollcall_protocol.job_config import EnvironmentConfig, RewardStyle
from rollcall_runtime.tasks import reward_process
from rollcall_runtime.tasks.environments import environment_messages
from rollcall_runtime.tasks.user_process import UserCode, UserProcess

USERS = """\
import time

def reward(prompt, response):
    return 1.0

class Environment:
    def reset(self):
        return None
    def step(self, response):
        time.sleep(60)  # a call that goes on when the worker ends
"""

ENVIRONMENT = EnvironmentConfig("users_code:Environment", config={}, step_seconds=20.0)
CHILDREN = {
    "reward_child": (
        reward_process.named(
            *("users_code:reward", {}, (), None), seconds=20.0, style=RewardStyle.ROLLCALL
        ),
        [reward_process.request([0], [([5], 0.0)], {}, stop=False)],
    ),
    "environments.environment_child": (
        environment_messages.named(ENVIRONMENT, None),
        [
            environment_messages.reset(1, 1, prompt=[0], row={}, seed=0),
            environment_messages.step(2, 1, response=[5]),
        ],
    ),
}


@pytest.mark.parametrize("child", CHILDREN)
async def test_it_ends_without_a_traceback_if_its_worker_leaves_an_answer_unread(
    child: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "users_code.py").write_text(USERS, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    named, requests = CHILDREN[child]
    module = f"rollcall_runtime.tasks.{child}"
    code = UserCode(module, named, shown="users_code", field="spec", max_answer=1 << 16)
    process = await UserProcess.start(code, free=None)
    try:
        transport = process.writer.transport
        assert isinstance(transport, asyncio.Transport)
        transport.pause_reading()
        for request in requests:
            process.send(request)
        answer = transport.get_extra_info("socket").fileno()
        readable, _, _ = await asyncio.to_thread(select.select, [answer], [], [], 20.0)
        assert readable, "it answered"
        transport.abort()
        async with asyncio.timeout(20.0):
            assert await asyncio.shield(process.exited) == 0
    finally:
        await process.kill()
    assert capfd.readouterr().err == ""
