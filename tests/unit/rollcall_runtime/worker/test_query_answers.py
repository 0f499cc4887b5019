"""Clients, however many or slow, cost one answer at a time and no more than a share of a core."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from itertools import pairwise

import aiohttp
import pytest
from aiohttp import web

from rollcall_runtime.worker import query_answers
from rollcall_runtime.worker.query_answers import QueryAnswers

LARGE = b"x" * (32 << 20)  # more than sockets hold


class Answerer:
    """Counts how many answers are made at once, and when."""

    def __init__(self) -> None:
        self.at_once = self.most = 0
        self.times: list[float] = []

    def __call__(self, query: Mapping[str, str]) -> bytes:
        self.times.append(time.monotonic())
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        time.sleep(0.01)
        self.at_once -= 1
        if query["n"] == "none":
            raise FileNotFoundError
        if query["n"] == "bad":
            raise ValueError("n is bad")
        return LARGE if query["n"] == "large" else query["n"].encode()


@pytest.fixture
def answerer() -> Answerer:
    return Answerer()


@pytest.fixture
async def port(answerer: Answerer, unused_tcp_port: int) -> AsyncIterator[int]:
    """Where the queries are answered."""
    application = web.Application()
    application.router.add_get("/", QueryAnswers(answerer).handle)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", unused_tcp_port).start()
    yield unused_tcp_port
    await runner.cleanup()


async def ask(port: int, *words: str) -> list[tuple[int, str]]:
    """Status and text of answers that are asked for at once."""
    async with aiohttp.ClientSession() as session:

        async def one(word: str) -> tuple[int, str]:
            async with session.get(f"http://127.0.0.1:{port}/?n={word}") as found:
                return found.status, await found.text()

        return await asyncio.gather(*map(one, words))


async def test_queries_are_answered_one_at_a_time(port: int, answerer: Answerer) -> None:
    found = await ask(port, "7", "none", "bad", "8")
    assert [status for status, _ in found] == [200, 404, 400, 200]
    assert (found[0][1], found[2][1], found[3][1]) == ("7", "n is bad", "8")
    assert answerer.most == 1


async def test_answers_take_a_share_of_the_time_alone(port: int, answerer: Answerer) -> None:
    await ask(port, *"12345")
    apart = [after - before for before, after in pairwise(answerer.times)]
    assert min(apart) >= 0.09, "10 ms of work, and 90 ms of rest"


async def test_a_client_that_does_not_read_is_cut_off_and_others_are_answered(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query_answers, "READ_SECONDS", 0.1)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /?n=large HTTP/1.1\r\nHost: x\r\n\r\n")
    await writer.drain()
    await asyncio.sleep(0.02)
    assert await ask(port, "7") == [(200, "7")]
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await reader.readexactly(len(LARGE))
    writer.close()


async def test_who_waits_too_long_is_sent_away(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_answers, "WAIT_SECONDS", 0.05)
    found = await ask(port, "1", "2")
    assert sorted(status for status, _ in found) == [200, 503]
