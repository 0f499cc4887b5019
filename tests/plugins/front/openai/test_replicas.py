"""Trajectories of several pods of the front, none of which owns one."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from rollcall_protocol.wire.trajectories import FinishedTrajectory, TrajectoryVerdict, TurnVerdict
from tests.plugins.front.openai.front_client import FROM_FRONT, JOB, FrontClient, front
from tests.plugins.front.openai.memory_store import MemoryStore
from tests.plugins.front.openai.test_server import ASK, NAMED, Sender, reward, say
from tests.unit.rollcall_runtime.rollout.counting_rollouts import (
    CountingRollout,
    counting_rollout,
    expected,
)


class Ending(Sender):
    """Ends what it decides about, as the coordinator does."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__()
        self._store = store

    async def deliver(self, finished: FinishedTrajectory) -> TrajectoryVerdict:
        self._store.keeper.kept.end(finished.trajectory)
        return await super().deliver(finished)


GO_ON = {"role": "user", "content": "go on"}


@asynccontextmanager
async def replicas(
    store: MemoryStore, sender: Sender, *, pause: float = 0.0
) -> AsyncIterator[tuple[FrontClient, FrontClient, CountingRollout]]:
    own: dict[str, Any] = {"job": FROM_FRONT, "sender": sender, "store": store}
    async with (
        counting_rollout(number=2, pause=pause) as rollout,
        front(rollout, **own) as one,
        front(rollout, **own) as other,
    ):
        yield one, other, rollout


def answer(said: str) -> dict[str, str]:
    return {"role": "assistant", "content": said}


async def status_of(client: FrontClient, *messages: dict[str, str]) -> tuple[int, str]:
    body = {"model": JOB.model, "messages": messages, "max_tokens": 6}
    url = f"{client.url}/v1/chat/completions"
    async with client.session.post(url, json=body, headers=NAMED) as found:
        return found.status, (await found.json()).get("error", {}).get("message", "")


async def test_turns_at_two_pods_by_turns_are_one_sample() -> None:
    store = MemoryStore()
    sender = Ending(store)
    async with replicas(store, sender) as (one, other, rollout):
        messages = [ASK]
        for client in (one, other, one, other):
            messages += [answer(await say(client, *messages)), GO_ON]
        assert (await reward(one, reward=0.5))[0] == 200
        prompts = [request.prompt for request in rollout.engine.requests]
        for client in (one, other):
            assert (await reward(client, reward=0.5))[0] == 409, "it has its reward"
            assert (await status_of(client, ASK))[0] == 409
    (sent,) = sender.sent
    (part,) = sent.parts
    assert part.prompt == prompts[0]
    assert (*part.prompt, *part.sample.tokens) == (*prompts[3], *expected(prompts[3], 6))
    assert part.sample.versions.count(2) == 24
    known = [turn.known for turn in store.added]
    assert known == [0, *(len(prompt) + 6 for prompt in prompts[:3])], "each token is sent once"


async def test_two_requests_at_once_at_two_pods_are_both_kept_in_one_order() -> None:
    store, sender = MemoryStore(), Sender()
    async with replicas(store, sender, pause=0.002) as (one, other, _):
        said = await say(one, ASK)
        both = [{"role": "user", "content": text} for text in ("left", "right")]
        await asyncio.gather(
            *(
                say(pod, ASK, answer(said), each)
                for pod, each in zip((one, other), both, strict=True)
            )
        )
        for pod in (one, other):
            assert (await status_of(pod, ASK))[0] == 200
        assert (await reward(other, reward=1))[0] == 200
    assert [turn.number for turn in store.added] == [0, 1, 2, 3, 4]
    verdict, turns = store.keeper.kept.since("t-1", 0)
    assert (verdict, len(turns)) == (TurnVerdict.KEPT, 5)
    sampled = [part.sample.versions.count(2) for part in sender.sent[0].parts]
    assert sum(sampled) == 5 * 6, "each sampled token is in one sample"


async def test_what_an_earlier_trainer_kept_is_refused_by_all_pods() -> None:
    store, sender = MemoryStore(), Sender()
    async with replicas(store, sender) as (one, other, _):
        said = await say(one, ASK)
        store.restart()
        for client in (one, other):
            status, problem = await status_of(client, ASK, answer(said), GO_ON)
            assert status == 409
            assert "the trainer has restarted" in problem
            assert (await reward(client, reward=1))[0] == 409
    assert sender.sent == []


async def test_an_answer_that_the_trainer_did_not_take_is_not_given() -> None:
    store, sender = MemoryStore(), Sender()
    async with replicas(store, sender) as (one, other, _):
        said = await say(one, ASK)
        store.away = True
        for client in (one, other):
            status, problem = await status_of(client, ASK, answer(said), GO_ON)
            assert status == 503
            assert "send the request again" in problem
            assert (await reward(client, reward=1))[0] == 503
        store.away = False
        await say(other, ASK, answer(said), GO_ON)
        assert (await reward(one, reward=1))[0] == 200
    (sent,) = sender.sent
    (part,) = sent.parts
    assert part.sample.versions.count(2) == 12


async def test_an_answer_is_kept_before_the_agent_has_the_end_of_its_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, goes_on = MemoryStore(), asyncio.Event()
    add = store.add

    async def slow(turn: Any) -> bool:
        await goes_on.wait()
        return await add(turn)

    monkeypatch.setattr(store, "add", slow)
    async with replicas(store, Sender()) as (one, *_), asyncio.timeout(20):
        body = {"model": JOB.model, "messages": [ASK], "max_tokens": 6, "stream": True}
        url = f"{one.url}/v1/chat/completions"
        async with one.session.post(url, json=body, headers=NAMED) as found:
            assert b"finish_reason" in await found.content.readline(), "the first piece"
            goes_on.set()
            rest = await found.content.read()
    assert rest.endswith(b"data: [DONE]\n\n")
    assert len(store.added) == 1


async def test_what_cannot_be_trained_on_is_dropped_everywhere() -> None:
    store, sender = MemoryStore(), Sender()
    async with replicas(store, sender) as (one, other, _):
        await say(one, ASK, temperature=0.3)
        assert (await reward(other, reward=1))[0] == 409
        assert len(store.keeper.kept) == 0
        assert (await status_of(one, ASK))[0] == 409
    assert sender.sent == []
