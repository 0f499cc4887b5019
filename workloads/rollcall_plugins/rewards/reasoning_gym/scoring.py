"""What a data set of reasoning-gym gives for an answer; a BoundedWorker calls this."""

import json
from typing import Any

from rollcall_runtime.tasks import reasoning_gym_task
from rollcall_runtime.tasks.reasoning_gym_task import ReasoningGymTask

reasoning_gym_task.import_package()
_tasks: dict[str, ReasoningGymTask] = {}  # as many as the job has sources


def check(name: str, config: dict[str, Any], number: int, question: str) -> None:
    """ValueError if the question is another one here. Other errors are those of the data set."""
    key = json.dumps([name, config], sort_keys=True)
    if key not in _tasks:
        task = reasoning_gym_task.open_task(name, config)
        task.score(number, task.entry(number)["answer"])  # so what `score` raises is the answer's
        _tasks[key] = task
    if _tasks[key].entry(number)["question"] != question:
        problem = f"question {number} of {name!r} is another one here"
        raise ValueError(f"{problem}; trainer and rollouts need one release of reasoning-gym")


def score(name: str, config: dict[str, Any], number: int, answer: str | None) -> float:
    """What the data set's own rule gives, after `check`."""
    return _tasks[json.dumps([name, config], sort_keys=True)].score(number, answer)
