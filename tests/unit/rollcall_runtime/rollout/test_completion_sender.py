"""Completions arrive once they can, and are given up only when they cannot count."""

import asyncio
import itertools
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from rollcall_protocol.wire.ids import Lineage, MemberId, Version
from rollcall_protocol.wire.messages import Completion, Sample, loads
from rollcall_runtime.rollout import completion_sender
from rollcall_runtime.rollout.completion_sender import CompletionSender
from rollcall_runtime.worker.telemetry import RolloutMetrics
from tests.unit.rollcall_runtime.rollout.fake_engine import rollout_metrics

SAMPLE = Sample((3, 2), (-1.0, -0.5), (0, 0), 0.5)


def completion(number: int) -> Completion:
    member = MemberId("uid-1", "boot-1")
    return Completion("job-uid", member, f"1.1.{number}", Version(Lineage(1, 1), 0), (SAMPLE,))


def sender_to(port: int, metrics: RolloutMetrics, *, host: str = "127.0.0.1") -> CompletionSender:
    return CompletionSender(
        url=f"http://{host}:{port}/",
        token=map("token-{}".format, itertools.count(1)).__next__,
        metrics=metrics,
        answered=lambda: None,
    )


class Coordinator:
    """Answers with the given statuses in turn, then with 200."""

    def __init__(self, *statuses: int) -> None:
        self.statuses = list(statuses)
        self.got: list[Completion] = []
        self.tokens: set[str] = set()

    async def take(self, request: web.Request) -> web.Response:
        self.got.append(loads(await request.read(), Completion))
        self.tokens.add(request.headers["Authorization"])
        return web.Response(status=self.statuses.pop(0) if self.statuses else 200)

    @asynccontextmanager
    async def listening(self, port: int) -> AsyncIterator[CompletionSender]:
        application = web.Application()
        application.router.add_post("/", self.take)
        runner = web.AppRunner(application)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        self.metrics = rollout_metrics()
        sender = sender_to(port, self.metrics)
        self.task = asyncio.create_task(sender.run())
        try:
            yield sender
        finally:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)
            await runner.cleanup()

    def outcomes(self, outcome: str) -> float:
        labels = self.metrics.labels | {"outcome": outcome}
        value = self.metrics.registry.get_sample_value("rollcall_completions_total", labels)
        return value or 0.0


async def test_a_completion_is_delivered_with_the_members_token(unused_tcp_port: int) -> None:
    coordinator = Coordinator()
    async with coordinator.listening(unused_tcp_port) as sender:
        sender.offer(completion(1))
        assert await sender.flush(5)
    assert coordinator.got == [completion(1)]
    assert coordinator.tokens == {"Bearer token-1"}
    assert coordinator.outcomes("counted") == 1


async def test_a_completion_is_posted_again_after_a_server_error(unused_tcp_port: int) -> None:
    coordinator = Coordinator(503, 500)
    async with coordinator.listening(unused_tcp_port) as sender:
        sender.offer(completion(1))
        assert await sender.flush(5)
    assert coordinator.got == [completion(1)] * 3
    assert coordinator.outcomes("counted") == 1


@pytest.mark.parametrize(
    ("status", "outcome"),
    [(409, "dropped"), (403, "dropped"), (400, "refused"), (413, "refused")],
)
async def test_what_can_never_count_is_not_repeated(
    unused_tcp_port: int, status: int, outcome: str
) -> None:
    coordinator = Coordinator(status)
    async with coordinator.listening(unused_tcp_port) as sender:
        sender.offer(completion(1))
        assert await sender.flush(5)
    assert len(coordinator.got) == 1
    assert coordinator.outcomes(outcome) == 1


async def test_what_the_coordinator_never_takes_is_given_up(
    unused_tcp_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completion_sender, "GIVE_UP_SECONDS", 0.2)
    coordinator = Coordinator(*[503] * 1000)
    async with coordinator.listening(unused_tcp_port) as sender:
        sender.offer(completion(1))
        assert await sender.flush(5)
    assert coordinator.outcomes("given_up") == 1


async def test_after_a_refused_token_the_one_that_is_there_by_then_is_shown(
    unused_tcp_port: int,
) -> None:
    coordinator = Coordinator(401)
    async with coordinator.listening(unused_tcp_port) as sender:
        sender.offer(completion(1))
        assert await sender.flush(5)
    assert coordinator.tokens == {"Bearer token-1", "Bearer token-2"}
    assert coordinator.outcomes("counted") == 1


async def test_a_coordinator_that_is_away_is_waited_for(unused_tcp_port: int) -> None:
    sender = sender_to(unused_tcp_port, rollout_metrics())
    task = asyncio.create_task(sender.run())
    sender.offer(completion(1))
    sender.offer(completion(2))
    assert not await sender.flush(0.3)
    assert sender.backlog == 2
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_what_a_lost_coordinator_never_answered_is_sent_again_at_once(
    unused_tcp_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A vanished node says nothing: without a word of the new stream, ATTEMPT_SECONDS go by."""
    monkeypatch.setattr(completion_sender, "FIRST_DELAY", 600.0)
    coordinator = Coordinator()
    silent = socket.create_server(("127.0.0.1", unused_tcp_port))
    sender = sender_to(unused_tcp_port, rollout_metrics())
    task = asyncio.create_task(sender.run())
    sender.offer(completion(1))
    assert not await sender.flush(0.3)
    connection, _ = silent.accept()
    silent.close()
    async with coordinator.listening(unused_tcp_port):
        sender.retry()
        assert await sender.flush(5)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    connection.close()
    assert coordinator.got == [completion(1)]


async def test_a_retry_does_not_wait_for_the_next_attempt(
    unused_tcp_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completion_sender, "FIRST_DELAY", 600.0)
    coordinator = Coordinator(503)
    async with coordinator.listening(unused_tcp_port) as sender:
        sender.offer(completion(1))
        assert not await sender.flush(0.3)
        sender.retry()
        assert await sender.flush(5)


async def test_a_coordinator_that_is_slow_to_answer_has_longer_each_time(
    unused_tcp_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completion_sender, "ATTEMPT_SECONDS", 0.1)
    coordinator = Coordinator()
    takes = coordinator.take

    async def slowly(request: web.Request) -> web.Response:
        await asyncio.sleep(0.25)
        return await takes(request)

    monkeypatch.setattr(coordinator, "take", slowly)
    async with coordinator.listening(unused_tcp_port) as sender:
        sender.offer(completion(1))
        assert await sender.flush(5)
        assert coordinator.outcomes("counted") == 1


async def test_the_coordinators_name_is_looked_up_each_time(
    unused_tcp_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 was replaced: its name leads elsewhere now."""
    asked, real = [], socket.getaddrinfo

    def look_up(host: str, *arguments: Any, **options: Any) -> Any:
        asked.append(host)
        return real("127.0.0.1" if len(asked) > 1 else "127.0.0.2", *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    coordinator = Coordinator()
    async with coordinator.listening(unused_tcp_port):
        sender = sender_to(unused_tcp_port, rollout_metrics(), host="trainer-0.job")
        task = asyncio.create_task(sender.run())
        sender.offer(completion(1))
        assert await sender.flush(5)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert asked == ["trainer-0.job"] * 2
