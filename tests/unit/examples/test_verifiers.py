"""The example of a `verifiers` environment: what it says to a job's front."""

import runpy
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from rollcall_plugins.front.openai.recording import TRAJECTORY_HEADER

FOLDER = Path(__file__).parents[3] / "examples" / "verifiers"
KEY = "a-long-key-of-the-first-agent"
FRONT: dict[str, Any] = runpy.run_path(str(FOLDER / "front.py"))


class StandIn:
    """Answers rewards with `statuses`, one after the other, and keeps what it got."""

    def __init__(self) -> None:
        self.statuses: list[int] = []
        self.got: list[tuple[str, Any]] = []
        self.url = ""

    async def models(self, request: web.Request) -> web.Response:
        assert request.headers["Authorization"] == f"Bearer {KEY}"
        return web.json_response({"object": "list", "data": [{"id": "/models/tiny"}]})

    async def reward(self, request: web.Request) -> web.Response:
        assert request.headers["Authorization"] == f"Bearer {KEY}"
        self.got.append((request.match_info["trajectory"], await request.json()))
        status = self.statuses.pop(0)
        return web.Response(status=status, text=f"it is {status}")


@pytest.fixture
async def front() -> AsyncIterator[StandIn]:
    stand_in, application = StandIn(), web.Application()
    application.router.add_get("/v1/models", stand_in.models)
    application.router.add_post("/v1/trajectories/{trajectory}/reward", stand_in.reward)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    stand_in.url = f"{site.name}/v1"
    yield stand_in
    await runner.cleanup()


async def give(front: StandIn, *statuses: int) -> str:
    front.statuses = list(statuses)
    async with FRONT["session"](KEY) as session:
        given = FRONT["give_reward"](session, front.url, "a.1", reward=0.5, group="a", pause=0.01)
        return str(await given)


async def test_the_job_names_its_model(front: StandIn) -> None:
    async with FRONT["session"](KEY) as session:
        assert await FRONT["model_of"](session, front.url) == "/models/tiny"


async def test_a_reward_has_its_trajectorys_name_and_its_group(front: StandIn) -> None:
    assert await give(front, 200) == ""
    assert front.got == [("a.1", {"reward": 0.5, "group": "a"})]


async def test_a_reward_that_the_trainer_does_not_take_now_is_sent_again(front: StandIn) -> None:
    assert await give(front, 503, 503, 200) == ""
    assert len(front.got) == 3


async def test_a_trainer_that_takes_no_reward_for_long_is_the_problem(front: StandIn) -> None:
    attempts = FRONT["REWARD_ATTEMPTS"]
    assert await give(front, *[503] * attempts) == "it is 503"
    assert front.statuses == []


async def test_a_dropped_trajectory_is_not_sent_again(front: StandIn) -> None:
    assert await give(front, 409) == "it is 409"
    assert len(front.got) == 1


def test_the_header_is_the_fronts() -> None:
    assert FRONT["TRAJECTORY_HEADER"] == TRAJECTORY_HEADER
