"""The front's turns at the coordinator: what both say to each other, and who answers what."""

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer

from rollcall_plugins.front.openai import turn_store
from rollcall_plugins.front.openai.turn_store import TrajectoryGoneError, TurnStore
from rollcall_protocol.prompts.sample_check import SampleBounds
from rollcall_protocol.wire.ids import Lineage, Version
from rollcall_protocol.wire.json_codec import to_json
from rollcall_protocol.wire.partial_responses import NOT_SAMPLED, Response
from rollcall_protocol.wire.trajectories import Digest, TrajectoryTurn, TurnVerdict
from rollcall_runtime.coordinator.turn_keeper import TurnKeeper

TURN = TrajectoryTurn(
    job_uid="uid",
    trajectory="t-1",
    number=0,
    known=0,
    given=(1, 2),
    response=Response((7, 8), (-0.5, -1.0), (3, 3), finished=True),
    oldest=Version(Lineage(1, 1), 3),
    usual=True,
    said=Digest(4, "ab"),
    end="<end>",
    messages=Digest(2, "cd"),
    seconds=60.0,
)
NEXT = replace(TURN, number=1, known=4, given=(5,))


@pytest.fixture(autouse=True)
def _short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn_store, "FIRST_DELAY", 0.001)
    monkeypatch.setattr(turn_store, "LONGEST_DELAY", 0.002)


class Coordinator:
    """A keeper behind sockets. First it fails with each of `failing`."""

    def __init__(self, *failing: int, wanted: bool = True) -> None:
        self.failing, self.refused = list(failing), list[str]()
        self.attempts = 0
        self.keeper = TurnKeeper(
            job_uid="uid",
            wanted=wanted,
            bounds=SampleBounds(64, 16),
            counted=(),
            refused=self.refused.append,
        )

    @web.middleware
    async def _fail(self, request: web.Request, handler: Any) -> web.StreamResponse:
        self.attempts += 1
        if self.failing:
            return web.Response(status=self.failing.pop(0))
        answer: web.StreamResponse = await handler(request)
        return answer

    @asynccontextmanager
    async def reached(self) -> AsyncIterator[tuple[TurnStore, str]]:
        application = web.Application(middlewares=[self._fail])
        application.router.add_get("/", self.keeper.give)
        application.router.add_post("/", self.keeper.take)
        application.router.add_delete("/", self.keeper.drop)
        async with TestServer(application) as server:
            url = str(server.make_url("/"))
            store = TurnStore(url=url, token=lambda: "token", tls=ssl.create_default_context)
            yield store, url
            await store.close()


async def test_turns_come_back_as_they_were_sent() -> None:
    coordinator = Coordinator()
    async with coordinator.reached() as (store, _):
        assert await store.since("t-1", 0) == ()
        assert await store.add(TURN)
        assert await store.add(TURN), "its answer may have been lost"
        assert not await store.add(replace(TURN, given=(9,))), "another one came before"
        assert await store.add(NEXT)
        assert await store.since("t-1", 0) == (TURN, NEXT)
        assert await store.since("t-1", 1) == (NEXT,)
        await store.end("t-1")
        for asked in (store.since("t-1", 0), store.add(NEXT)):
            with pytest.raises(TrajectoryGoneError) as gone:
                await asked
            assert gone.value.why is TurnVerdict.ENDED
    assert coordinator.refused == []


async def test_turns_of_an_earlier_trainer_are_lost() -> None:
    coordinator = Coordinator()
    async with coordinator.reached() as (store, _):
        for asked in (store.add(NEXT), store.since("t-1", 0)):
            with pytest.raises(TrajectoryGoneError) as gone:
                await asked
            assert gone.value.why is TurnVerdict.LOST
    assert coordinator.refused == ["lost_turn"] * 2


async def test_it_asks_again_while_the_coordinator_does_not_answer() -> None:
    coordinator = Coordinator(500, 503, 401, 408)
    async with coordinator.reached() as (store, _):
        assert await store.add(TURN)
    assert coordinator.attempts == 5


async def test_it_gives_up_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn_store, "REACH_SECONDS", 0.2)
    async with Coordinator(*[503] * 1000).reached() as (store, _):
        with pytest.raises(TimeoutError):
            await store.add(TURN)
        with pytest.raises(TimeoutError):
            await store.since("t-1", 0)


BAD = {
    "no name": replace(TURN, trajectory=""),
    "long name": replace(TURN, trajectory="x" * 129),
    "number": replace(TURN, number=-1),
    "known": replace(TURN, known=1),
    "no prompt": replace(TURN, given=()),
    "token of the prompt": replace(TURN, given=(64,)),
    "token": replace(TURN, response=replace(TURN.response, tokens=(7, 64))),
    "logprob": replace(TURN, response=replace(TURN.response, logprobs=(-0.5, 1.0))),
    "not sampled": replace(TURN, response=replace(TURN.response, versions=(3, NOT_SAMPLED))),
    "no answer": replace(TURN, response=Response(finished=True)),
    "positions": replace(TURN, given=(1,) * 15),
    "oldest": replace(TURN, oldest=Version(Lineage(1, 1), 4)),
    "long end": replace(TURN, end="x" * 257),
    "long digest": replace(TURN, said=Digest(1, "x" * 65)),
    "length": replace(TURN, messages=Digest(-1, "")),
    "seconds": replace(TURN, seconds=0.0),
    "no number of seconds": replace(TURN, seconds=float("nan")),
}


@pytest.mark.parametrize("what", BAD)
async def test_a_turn_that_no_front_sends_is_not_kept(what: str) -> None:
    coordinator = Coordinator()
    async with coordinator.reached() as (store, _):
        with pytest.raises(TrajectoryGoneError) as gone:
            await store.add(BAD[what])
        assert gone.value.why is TurnVerdict.BAD_TURN
        assert await store.since("t-1", 0) == ()
    assert coordinator.attempts == 2, "another attempt would change nothing"


async def test_who_wants_none_and_who_is_another_job_keep_none() -> None:
    for coordinator, turn, why in (
        (Coordinator(wanted=False), TURN, TurnVerdict.NOT_WANTED),
        (Coordinator(), replace(TURN, job_uid="other"), TurnVerdict.WRONG_JOB),
    ):
        async with coordinator.reached() as (store, _):
            with pytest.raises(TrajectoryGoneError) as gone:
                await store.add(turn)
            assert gone.value.why is why


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        (to_json(TURN).replace(",", ",\n").encode(), 400),
        (b" " * (2**16 + 16 * 64 + 1), 413),
    ],
)
async def test_what_cannot_be_read_is_refused(body: bytes, status: int) -> None:
    coordinator = Coordinator()
    async with (
        coordinator.reached() as (_, url),
        ClientSession() as session,
        session.post(url, data=body) as answer,
    ):
        assert answer.status == status
    assert len(coordinator.refused) == 1


@pytest.mark.parametrize("query", ["", "?trajectory=", "?trajectory=t&since=-1", "?since=0"])
async def test_a_query_without_a_name_and_a_number_is_refused(query: str) -> None:
    async with (
        Coordinator().reached() as (_, url),
        ClientSession() as session,
        session.get(url + query) as answer,
    ):
        assert answer.status == 400


async def test_turns_are_forgotten_after_the_time_that_the_job_says() -> None:
    coordinator = Coordinator()
    async with coordinator.reached() as (store, _):
        assert await store.add(replace(TURN, seconds=1e-6))
        with pytest.raises(TrajectoryGoneError) as gone:
            await store.since("t-1", 0)
        assert gone.value.why is TurnVerdict.LOST
    assert coordinator.refused == ["forgotten_trajectory", "lost_turn"]


async def test_turns_without_an_end_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    coordinator = Coordinator()
    monkeypatch.setattr(turn_store, "REACH_SECONDS", 0.2)
    async with coordinator.reached() as (store, _):
        assert await store.add(TURN)
        monkeypatch.setattr(turn_store, "LONGEST_TURNS", 100)
        with pytest.raises(TimeoutError):
            await store.since("t-1", 0)
