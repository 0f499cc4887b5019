"""Names are looked up without the event loop's threads, one look-up of a name at a time."""

import asyncio
import socket
import threading
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from rollcall_runtime.worker import name_look_ups
from rollcall_runtime.worker.name_look_ups import NameLookUps

NAME = "coordinator.example"


@pytest.fixture
def name_server(monkeypatch: pytest.MonkeyPatch) -> list[threading.Event]:
    """For each look-up of NAME an event: the name server answers once it is set."""
    asked: list[threading.Event] = []
    by_dns = socket.getaddrinfo

    def look_up(host: Any, *arguments: Any, **options: Any) -> Any:
        if host != NAME:
            return by_dns(host, *arguments, **options)
        asked.append(threading.Event())
        if not asked[-1].wait(60):
            raise socket.gaierror(socket.EAI_AGAIN, "no answer")
        return by_dns("127.0.0.1", *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    return asked


async def test_a_silent_name_server_keeps_one_thread_and_none_of_the_loops(
    name_server: list[threading.Event],
) -> None:
    names = NameLookUps()
    for _ in range(40):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await names.addresses(NAME)
    async with asyncio.timeout(20):
        assert await asyncio.to_thread(lambda: 7) == 7
    assert len(name_server) == 1
    waiting = asyncio.create_task(names.addresses(NAME))
    await asyncio.sleep(0)
    name_server[0].set()
    async with asyncio.timeout(20):
        assert await waiting == {"127.0.0.1"}


async def test_each_look_up_after_an_answer_asks_again(
    name_server: list[threading.Event],
) -> None:
    names = NameLookUps()
    for number in range(2):
        looking = asyncio.create_task(names.addresses(NAME))
        async with asyncio.timeout(20):
            while len(name_server) <= number:
                await asyncio.sleep(0.01)
            name_server[number].set()
            assert await looking == {"127.0.0.1"}


async def test_connections_go_to_where_the_name_led_last_while_the_name_server_is_silent(
    name_server: list[threading.Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(name_look_ups, "PATIENCE", 0.05)
    names = NameLookUps()
    looking = asyncio.create_task(names.resolve(NAME, 7070))
    async with asyncio.timeout(20):
        while not name_server:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        assert not looking.done(), "it led nowhere before"
        name_server[0].set()
        first = await looking
        assert [found["host"] for found in first] == ["127.0.0.1"]
        assert await names.resolve(NAME, 7070) == first
    name_server[1].set()


async def test_a_name_that_is_not_known_is_an_oserror() -> None:
    with pytest.raises(OSError, match=r"."):
        await NameLookUps().addresses("unknown.invalid")


async def test_a_connector_uses_it(
    name_server: list[threading.Event], unused_tcp_port: int
) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(text="here")

    app = web.Application()
    app.router.add_get("/", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", unused_tcp_port).start()
    connector = aiohttp.TCPConnector(use_dns_cache=False, resolver=NameLookUps())
    async with asyncio.timeout(20), aiohttp.ClientSession(connector=connector) as session:
        asking = asyncio.create_task(_text(session, f"http://{NAME}:{unused_tcp_port}/"))
        while not name_server:
            await asyncio.sleep(0.01)
        name_server[0].set()
        assert await asking == "here"
    await runner.cleanup()


async def _text(session: aiohttp.ClientSession, url: str) -> str:
    async with session.get(url) as answer:
        return await answer.text()
