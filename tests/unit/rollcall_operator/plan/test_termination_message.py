"""What a container died of, from messages that real programs left."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rollcall_operator.plan.pod_facts import pod_facts
from rollcall_operator.plan.termination_message import summarize
from rollcall_runtime.worker.exit import termination_message


def died(tmp_path: Path, source: str) -> str:
    """Standard error of a Python program that ends with an exception."""
    script = tmp_path / "task.py"
    script.write_text(source, encoding="utf-8")
    command = [sys.executable, str(script)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    return ended.stderr


RAISES = """
def score(response):
    raise ValueError("no reward for an empty response")

score("")
"""
IN_A_LIBRARY = """
import json

def score(response):
    return json.loads(response)

score("{")
"""
CHAINED = """
def load():
    try:
        {}["path"]
    except KeyError as error:
        raise RuntimeError("cannot read the model\\nsecond line") from error

load()
"""
IN_A_TASK_GROUP = """
import asyncio

async def member():
    raise ConnectionError("peer closed")

async def main():
    async with asyncio.TaskGroup() as group:
        group.create_task(member())

asyncio.run(main())
"""
SYNTAX = "def score(:\n    pass\n"


@pytest.mark.parametrize(
    ("source", "summary"),
    [
        pytest.param(
            RAISES,
            "ValueError: no reward for an empty response (task.py:3 in score)",
            id="an exception",
        ),
        pytest.param(
            IN_A_LIBRARY,
            "json.decoder.JSONDecodeError: Expecting property name enclosed in double quotes: line "
            "1 column 2 (char 1) (task.py:5 in score)",
            id="raised in a library: the user's own frame",
        ),
        pytest.param(
            CHAINED, "RuntimeError: cannot read the model (task.py:6 in load)", id="chained"
        ),
        pytest.param(
            IN_A_TASK_GROUP, "ConnectionError: peer closed (task.py:5 in member)", id="grouped"
        ),
        pytest.param(SYNTAX, "SyntaxError: invalid syntax (task.py:1)", id="syntax error"),
    ],
)
def test_a_raw_traceback_is_summed_up_by_its_last_exception(
    tmp_path: Path, source: str, summary: str
) -> None:
    assert summarize(died(tmp_path, source)) == summary


def test_a_traceback_whose_beginning_was_cut_off_is_still_one(tmp_path: Path) -> None:
    _, _, tail = died(tmp_path, IN_A_LIBRARY).partition("\n")
    assert "Traceback" not in tail
    assert summarize(tail).endswith("(task.py:5 in score)")


def test_log_lines_around_a_traceback_are_left_out(tmp_path: Path) -> None:
    log = f"loading weights\nready\n{died(tmp_path, RAISES)}terminating\n"
    assert summarize(log) == "ValueError: no reward for an empty response (task.py:3 in score)"


def test_a_worker_begins_its_message_with_the_summary(tmp_path: Path) -> None:
    first = "ValueError: no reward (my_task.py:12 in score)"
    assert summarize(f"{first}\n{died(tmp_path, CHAINED)}") == first


@pytest.mark.parametrize(
    ("message", "summary"),
    [
        ("", ""),
        ("spec.model.path: unknown builtin 'x'", "spec.model.path: unknown builtin 'x'"),
        ("one\ntwo\n\nthree\nfour\n", "two; three; four"),
        ("exec: not found (bash)", "exec: not found (bash)"),
    ],
)
def test_other_messages_are_their_last_lines(message: str, summary: str) -> None:
    assert summarize(message) == summary


@pytest.mark.parametrize(
    ("ended", "message"),
    [
        ({"exitCode": 1, "reason": "Error", "message": "boom\n"}, "boom"),
        ({"exitCode": 1, "reason": "Error"}, "Error"),
        ({"exitCode": 137, "reason": "OOMKilled"}, "OOMKilled, it used more memory than its limit"),
        (
            {"exitCode": 137, "reason": "OOMKilled", "message": "step 5"},
            "OOMKilled, it used more memory than its limit: step 5",
        ),
    ],
)
def test_an_out_of_memory_kill_is_named_even_when_there_is_a_log(
    ended: dict[str, object], message: str
) -> None:
    pod = {
        "metadata": {"name": "p", "uid": "u"},
        "spec": {"containers": [{"name": "rollout"}]},
        "status": {"containerStatuses": [{"name": "rollout", "state": {"terminated": ended}}]},
    }
    assert pod_facts(pod).exit_message == message


def test_the_message_of_a_rollcall_worker_gives_its_own_summary(tmp_path: Path) -> None:
    """Both sides agree: the worker writes the summary first, and the operator takes that line."""
    script = tmp_path / "my_task.py"
    script.write_text("def score(text):\n    return 1 / len(text)\n", encoding="utf-8")
    names: dict[str, Any] = {}
    exec(compile(script.read_text(), str(script), "exec"), names)  # noqa: S102 - the test's own
    with pytest.raises(ZeroDivisionError) as raised:
        names["score"]("")
    message = termination_message(raised.value).decode()
    assert "Traceback" in message
    assert summarize(message) == "ZeroDivisionError: division by zero (my_task.py:2 in score)"
