"""Asks a job's front for its model, and gives it rewards."""

from __future__ import annotations

import asyncio

import aiohttp

TRAJECTORY_HEADER = "X-Rollcall-Trajectory"
REWARD_ATTEMPTS = 20  # while the trainer takes no trajectory


def session(key: str) -> aiohttp.ClientSession:
    """Requests that show `key`."""
    return aiohttp.ClientSession(headers={"Authorization": f"Bearer {key}"})


async def model_of(front: aiohttp.ClientSession, url: str) -> str:
    """The name of the job's model; `url` ends with /v1."""
    async with front.get(f"{url}/models") as answer:
        answer.raise_for_status()
        return str((await answer.json())["data"][0]["id"])


async def give_reward(
    front: aiohttp.ClientSession,
    url: str,
    trajectory: str,
    *,
    reward: float,
    group: str,
    pause: float = 2.0,
) -> str:
    """Why the trajectory is no sample of the job, or "" if it is.

    The front keeps a trajectory that the trainer does not take now, so its reward is sent again.
    """
    body = {"reward": reward, "group": group}
    problem = ""
    for _ in range(REWARD_ATTEMPTS):
        async with front.post(f"{url}/trajectories/{trajectory}/reward", json=body) as answer:
            if answer.status == 200:
                return ""
            problem = await answer.text()
            if answer.status != 503:
                return problem
        await asyncio.sleep(pause)
    return problem
