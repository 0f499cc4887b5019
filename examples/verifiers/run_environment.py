"""Trains a job on an environment of `verifiers`, through the job's front.

Each rollout is a trajectory of the front, and the rollouts of a task are its group.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import uuid
from collections import Counter
from typing import TYPE_CHECKING, Any

import verifiers.v1 as vf
from front import TRAJECTORY_HEADER, give_reward, model_of, session

if TYPE_CHECKING:
    import aiohttp

KEY_VARIABLE = "ROLLCALL_API_KEY"
ATTEMPTS = 3  # for a rollout that fails, or whose trajectory the job does not take


def environment_of(name: str, harness: str) -> Any:
    """The environment of the taskset `name`, an importable module, with one agent."""
    agent = {"harness": {"id": harness}, "runtime": {"type": "subprocess"}}
    config = vf.env_config_type(name).model_validate({"taskset": {"id": name}, "agent": agent})
    return vf.load_environment(config)


async def attempt(
    environment: Any, task: Any, *, front: aiohttp.ClientSession, url: str, group: str, model: str
) -> str:
    """One rollout as a trajectory; why it is no sample of the job, or ""."""
    trajectory = f"{group}.{uuid.uuid4().hex[:12]}"
    # A client of its own for each rollout: so its requests, and no others, have this header.
    client = vf.EvalClientConfig(
        base_url=url, api_key_var=KEY_VARIABLE, headers={TRAJECTORY_HEADER: trajectory}
    )
    episode = await environment.run_episode(task, vf.ModelContext(model=model, client=client))
    if not episode.ok:
        errors = [*episode.errors, *(one for trace in episode.traces for one in trace.errors)]
        return "; ".join(f"{error.type}: {error.message}" for error in errors)
    if len(episode.traces) != 1:  # their requests went to one trajectory
        return f"an episode has {len(episode.traces)} rollouts of agents, not one"
    reward = episode.traces[0].reward
    return await give_reward(front, url, trajectory, reward=reward, group=group)


async def rollout(environment: Any, task: Any, **asked: Any) -> bool:
    """Whether one of ATTEMPTS gave the job a sample."""
    for _ in range(ATTEMPTS):
        problem = await attempt(environment, task, **asked)
        if not problem:
            return True
        print(f"task {task.data.idx}: {problem}", file=sys.stderr)
    return False


async def run(arguments: argparse.Namespace) -> Counter[bool]:
    """How many rollouts became samples, and how many did not."""
    environment = environment_of(arguments.environment, arguments.harness)
    tasks = list(environment.taskset.take(arguments.tasks))
    run_name = uuid.uuid4().hex[:8]  # a group is never completed by those of another run
    planned = [
        (f"{run_name}.{number}.{task.data.idx}", task)
        for number in range(arguments.passes)
        for task in tasks
    ]
    counts: Counter[bool] = Counter()
    async with session(os.environ[KEY_VARIABLE]) as front:
        url = arguments.front
        asked = {"front": front, "url": url, "model": await model_of(front, url)}
        for first in range(0, len(planned), arguments.at_once):
            rollouts = [
                rollout(environment, task, group=group, **asked)
                for group, task in planned[first : first + arguments.at_once]
                for _ in range(arguments.group_size)
            ]
            # `verifiers` keeps the client of each rollout, about 1 MiB, until `serving` ends.
            async with environment.serving():
                counts.update(await asyncio.gather(*rollouts))
    return counts


def main() -> int:
    """1 if a rollout gave no sample."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("environment", help="module of the taskset, such as guess_number")
    parser.add_argument("--front", required=True, help="http://JOB-front.NAMESPACE.svc:7075/v1")
    parser.add_argument("--tasks", type=int, default=16, help="how many tasks, from the first")
    parser.add_argument("--passes", type=int, default=1, help="how often each task is asked")
    parser.add_argument("--group-size", type=int, required=True, help="the job's groupSize")
    parser.add_argument("--at-once", type=int, default=8, help="tasks at the same time")
    parser.add_argument("--harness", default="in_process", help="module of the harness")
    counts = asyncio.run(run(parser.parse_args()))
    print(f"{counts[True]} samples, {counts[False]} rollouts without one")
    return 1 if counts[False] else 0


if __name__ == "__main__":
    sys.exit(main())
