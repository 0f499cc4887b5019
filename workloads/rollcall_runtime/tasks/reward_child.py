"""The reward process: calls the user's reward function for a rollout, beside it.

It imports neither torch nor anything else that the user's own module does not import. It ends with
the rollout, however that ends.
"""

import contextlib
import json
import os
import resource
import socket
import sys
import traceback
from pathlib import Path
from typing import Any

from rollcall_protocol.job_config import RewardPart
from rollcall_runtime.tasks.reward_function import (
    RewardFunction,
    UnusableRewardError,
    load_reward,
)
from rollcall_runtime.tasks.reward_messages import LENGTH, pack
from rollcall_runtime.tasks.weighted_sum import WeightedSum, load_sum
from rollcall_runtime.worker.errors import SpecError
from rollcall_runtime.worker.exit import summary
from rollcall_runtime.worker.parent_process import end_with_parent

_KILLED_FIRST = 1000  # of the processes of a container that has no memory left; proc(5)


def main() -> None:
    """Serve until the rollout closes its side of the socket.

    Arguments: the socket's descriptor, the rollout's process id, how much memory the process may
    allocate in bytes (0: any), and what `reward_messages.named` makes of the function.
    """
    connection, parent, memory, named = sys.argv[1:]
    end_with_parent()
    if os.getppid() != int(parent):  # it ended before the kernel was asked
        os._exit(0)
    _limit_memory(int(memory))
    with socket.socket(fileno=int(connection)) as rollout:
        try:
            reward = _load(json.loads(named))
        except SpecError as error:
            traceback.print_exception(error)
            problem = summary(error).removeprefix(f"{error.field}: ")
            rollout.sendall(pack({"refused": problem, "field": error.field}))
            os._exit(1)
        rollout.sendall(pack({"file": reward.file, "line": reward.line}))
        _serve(rollout, reward)
    os._exit(0)  # threads of the user's code do not hold it back


def _load(named: dict[str, Any]) -> RewardFunction | WeightedSum:
    directory = Path(named["directory"]) if named["directory"] else None
    if named["parts"]:
        return load_sum([RewardPart(**part) for part in named["parts"]], directory=directory)
    return load_reward(named["function"], named["config"], directory=directory)


def _serve(rollout: socket.socket, reward: RewardFunction | WeightedSum) -> None:
    own = os.getpid()
    with rollout.makefile("rb") as stream:
        while header := stream.read(LENGTH.size):
            request = json.loads(stream.read(*LENGTH.unpack(header)))
            prompt, row = tuple(request["prompt"]), request["row"]
            for response in request["responses"]:
                answer = _score(reward, prompt, tuple(response), row)
                if os.getpid() != own:
                    os._exit(0)  # the function forked and returned in both processes
                rollout.sendall(pack(answer))
                if "kind" in answer and request["stop"]:
                    break


def _score(
    reward: RewardFunction | WeightedSum,
    prompt: tuple[int, ...],
    response: tuple[int, ...],
    row: dict[str, Any],
) -> dict[str, Any]:
    try:
        answer: dict[str, Any] = {"reward": reward(prompt, response, row)}
        return answer | ({"parts": reward.numbers} if isinstance(reward, WeightedSum) else {})
    except UnusableRewardError as error:
        if error.__cause__ is not None:
            traceback.print_exception(error.__cause__)
        return {
            "kind": error.kind,
            "value": error.value,
            "file": error.file,
            "line": error.line,
        }


def _limit_memory(nbytes: int) -> None:
    if nbytes > 0:
        resource.setrlimit(resource.RLIMIT_DATA, (nbytes, nbytes))
    with contextlib.suppress(OSError):  # a kernel without it
        Path("/proc/self/oom_score_adj").write_text(str(_KILLED_FIRST), encoding="ascii")
