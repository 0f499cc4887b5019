"""The reward process: calls the user's reward function for a worker, beside it."""

import json
import os
import socket
import traceback
from pathlib import Path
from typing import Any

from rollcall_protocol.job_config import RewardPart, RewardStyle
from rollcall_runtime.tasks.process_messages import LENGTH, pack
from rollcall_runtime.tasks.reward_function import (
    RewardFunction,
    UnusableRewardError,
    WeightedSum,
    load_reward,
    load_sum,
)
from rollcall_runtime.tasks.reward_text import ResponseText
from rollcall_runtime.tasks.user_child import run_child


def main() -> None:
    """Serve until the worker closes its side of the socket; see `run_child`."""
    run_child(_load, _serve)


def _load(named: dict[str, Any]) -> RewardFunction | WeightedSum:
    directory = Path(named["directory"]) if named["directory"] else None
    seconds = named["seconds"]
    text = ResponseText(frozenset(named["ends"]), named["keep_special"])
    if named["parts"]:
        parts = [RewardPart(**part) for part in named["parts"]]
        return load_sum(parts, directory=directory, text=text, seconds=seconds)
    return load_reward(
        named["function"],
        named["config"],
        directory=directory,
        text=text,
        seconds=seconds,
        style=RewardStyle(named["style"]),
    )


def _serve(rollout: socket.socket, reward: RewardFunction | WeightedSum) -> None:
    own = os.getpid()
    with rollout.makefile("rb") as stream:
        while header := stream.read(LENGTH.size):
            request = json.loads(stream.read(*LENGTH.unpack(header)))
            prompt, row = tuple(request["prompt"]), request["row"]
            for response, gained in request["samples"]:
                answer = _score(reward, prompt, tuple(response), row, gained)
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
    environment_reward: float,
) -> dict[str, Any]:
    try:
        answer: dict[str, Any] = {"reward": reward(prompt, response, row, environment_reward)}
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
