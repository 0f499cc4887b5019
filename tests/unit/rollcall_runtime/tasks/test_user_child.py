"""A process that runs the user's code ends quietly with its worker."""

import json
import os
import select
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from rollcall_protocol.job_config import EnvironmentConfig
from rollcall_runtime.tasks import reward_messages
from rollcall_runtime.tasks.environments import environment_messages
from rollcall_runtime.tasks.process_messages import LENGTH, pack

USERS = """\
import time

def reward(prompt, response):
    return 1.0

class Environment:
    def reset(self):
        return None
    def step(self, response):
        time.sleep(60)
"""

ENVIRONMENT = EnvironmentConfig("users_code:Environment", config={}, step_seconds=20.0)
CHILDREN = {
    "reward_child": (
        reward_messages.named("users_code:reward", {}, (), None),
        [reward_messages.request([0], [([5], 0.0)], {}, stop=False)],
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
def test_it_ends_without_a_traceback_if_its_worker_leaves_an_answer_unread(
    child: str, tmp_path: Path
) -> None:
    (tmp_path / "users_code.py").write_text(USERS, encoding="utf-8")
    named, requests = CHILDREN[child]
    worker, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [
                *(sys.executable, "-c"),
                f"import rollcall_runtime.tasks.{child} as m; m.main()",
                *(str(theirs.fileno()), str(os.getpid()), "0", named),
            ],
            pass_fds=(theirs.fileno(),),
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        )
    with worker:
        assert "file" in _message(worker)
        for request in requests:
            worker.sendall(pack(request))
        assert select.select([worker], [], [], 20.0)[0], "it answered"
    try:
        _, printed = process.communicate(timeout=20.0)
    finally:
        process.kill()
    assert printed == b""
    assert process.returncode == 0


def _message(worker: socket.socket) -> dict[str, object]:
    with worker.makefile("rb") as stream:
        (length,) = LENGTH.unpack(stream.read(LENGTH.size))
        message = json.loads(stream.read(length))
    assert isinstance(message, dict)
    return message
