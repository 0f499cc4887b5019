"""The environment process: holds the environments of a rollout's samples, and calls them."""

import asyncio
import json
import os
import socket
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rollcall_protocol.wire.reward_errors import RewardErrorKind
from rollcall_runtime.tasks.environments.environment_messages import (
    AT_ONCE,
    ENDED,
    MAX_ANSWER,
    RESET,
)
from rollcall_runtime.tasks.environments.environment_plugin import TOOLS, environment_plugins
from rollcall_runtime.tasks.environments.user_environment import (
    BadAnswerError,
    EnvironmentMaker,
    UserEnvironment,
    load_environment,
)
from rollcall_runtime.tasks.process_messages import LENGTH, pack
from rollcall_runtime.tasks.user_child import run_child
from rollcall_runtime.tasks.user_code import described


def main() -> None:
    """Serve until the rollout closes its side of the socket; see `run_child`."""
    run_child(_load, lambda rollout, maker: asyncio.run(_serve(rollout, maker)))


def _load(named: dict[str, Any]) -> EnvironmentMaker:
    directory = Path(named["directory"]) if named["directory"] else None
    if named["tools"]:
        return environment_plugins.get(TOOLS)().load(named["tools"], directory=directory)
    return load_environment(named["function"], named["config"], directory=directory)


async def _serve(rollout: socket.socket, maker: EnvironmentMaker) -> None:
    reader, writer = await asyncio.open_connection(sock=rollout)
    threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="environment")
    asyncio.get_running_loop().set_default_executor(threads)
    environments: dict[int, UserEnvironment] = {}  # by sample
    tasks: set[asyncio.Task[None]] = set()

    async def handle(request: dict[str, Any]) -> None:
        answer = await _answer(request, environments, maker)
        writer.write(pack({"call": request["call"], **answer}))

    while True:
        try:
            (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
        except (asyncio.IncompleteReadError, ConnectionError):
            os._exit(0)  # calls that run do not hold it back
        request = json.loads(await reader.readexactly(length))
        if request["do"] == ENDED:
            # Behind a reset that came before it, whose task makes the environment when it begins.
            asyncio.get_running_loop().call_soon(environments.pop, request["sample"], None)
            continue
        task = asyncio.create_task(handle(request))
        tasks.add(task)
        task.add_done_callback(tasks.discard)


async def _answer(
    request: dict[str, Any], environments: dict[int, UserEnvironment], maker: EnvironmentMaker
) -> dict[str, Any]:
    sample = request["sample"]
    try:
        if request["do"] == RESET:
            environment = environments[sample] = maker.new()
            step = await environment.reset(request["prompt"], request["row"], request["seed"])
        else:
            step = await environments[sample].step(request["response"])
    except BadAnswerError as error:
        return _error(error.kind, error.problem, maker.file, maker.line)
    except BaseException as error:  # noqa: BLE001 - the user's code may raise anything
        traceback.print_exception(error)
        return _error(RewardErrorKind.RAISED, *described(error))
    answer = {"observation": step.observation, "reward": step.reward, "done": step.done}
    try:
        length = len(json.dumps(answer))
    except (TypeError, ValueError, RecursionError) as error:
        problem = f"an observation is no JSON: {error}"
        return _error(RewardErrorKind.BAD_ANSWER, problem, maker.file, maker.line)
    if length > MAX_ANSWER // 2:
        problem = f"an observation has more than {MAX_ANSWER // 2} bytes as JSON"
        return _error(RewardErrorKind.BAD_ANSWER, problem, maker.file, maker.line)
    return answer


def _error(kind: RewardErrorKind, value: str, file: str, line: int) -> dict[str, Any]:
    return {"kind": kind, "value": value, "file": file, "line": line}
