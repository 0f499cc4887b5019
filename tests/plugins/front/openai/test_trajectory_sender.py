"""A trajectory is sent to the coordinator until it has decided, or the time is up."""

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from rollcall_plugins.front.openai import recording
from rollcall_plugins.front.openai.recording import TrajectorySender
from rollcall_protocol.wire.ids import Lineage, Version
from rollcall_protocol.wire.json_codec import decode, parse
from rollcall_protocol.wire.messages import Sample
from rollcall_protocol.wire.trajectories import (
    FinishedTrajectory,
    TrajectoryPart,
    TrajectoryVerdict,
)

SAMPLE = Sample((7,), (-0.5,), (0,), 1.0)
PARTS = (TrajectoryPart((1, 2), SAMPLE), TrajectoryPart((1, 3), SAMPLE))
FINISHED = FinishedTrajectory("uid", "t-1", "", PARTS, Version(Lineage(1, 1), 0))


class Coordinator:
    """Answers with these statuses and verdicts by turns, with the last one again and again."""

    def __init__(self, *answers: tuple[int, str]) -> None:
        self.answers = list(answers)
        self.got: list[FinishedTrajectory] = []
        self.tokens: list[str] = []

    async def take(self, request: web.Request) -> web.Response:
        self.got.append(decode(FinishedTrajectory, parse(await request.read()), path="it"))
        self.tokens.append(request.headers["Authorization"])
        status, verdict = self.answers[0] if len(self.answers) == 1 else self.answers.pop(0)
        return web.json_response({"verdict": verdict}, status=status)

    @asynccontextmanager
    async def sender(self) -> AsyncIterator[TrajectorySender]:
        application = web.Application()
        application.router.add_post("/", self.take)
        async with TestServer(application) as server:
            yield TrajectorySender(
                url=str(server.make_url("/")),
                token=lambda: f"token-{len(self.got)}",
                tls=ssl.create_default_context,
            )


@pytest.fixture(autouse=True)
def _short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "FIRST_DELAY", 0.01)
    monkeypatch.setattr(recording, "LONGEST_DELAY", 0.02)


@pytest.mark.parametrize(
    ("status", "verdict"), [(200, "counted"), (200, "duplicate"), (409, "stale")]
)
async def test_what_the_coordinator_decides_is_the_verdict(status: int, verdict: str) -> None:
    coordinator = Coordinator((status, verdict))
    async with coordinator.sender() as sender:
        assert await sender.deliver(FINISHED) == TrajectoryVerdict(verdict)
    assert coordinator.got == [FINISHED]


async def test_it_is_sent_again_while_the_trainer_takes_none_or_does_not_answer() -> None:
    coordinator = Coordinator((503, "full"), (500, ""), (401, ""), (200, "counted"))
    async with coordinator.sender() as sender:
        assert await sender.deliver(FINISHED) is TrajectoryVerdict.COUNTED
    assert coordinator.got == [FINISHED] * 4
    assert len(set(coordinator.tokens)) == 4, "each attempt shows the token that is there by then"


async def test_it_is_given_up_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "DELIVER_SECONDS", 0.2)
    coordinator = Coordinator((503, "full"))
    async with coordinator.sender() as sender:
        with pytest.raises(TimeoutError):
            await sender.deliver(FINISHED)


@pytest.mark.parametrize("status", [400, 413])
async def test_what_the_coordinator_cannot_read_is_not_sent_again(status: int) -> None:
    coordinator = Coordinator((status, ""))
    async with coordinator.sender() as sender:
        assert await sender.deliver(FINISHED) is TrajectoryVerdict.BAD_SAMPLE
    assert len(coordinator.got) == 1
