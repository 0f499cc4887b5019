"""A WATCH over HTTP, for clients that read, that are slow, and that are gone."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from rollcall_local.api_server import change_log, watch_stream
from rollcall_local.api_server.change_log import MOST_AT_ONCE, REMEMBERED
from rollcall_operator.kube.errors import ExpiredError
from rollcall_operator.kube.resources import CONFIG_MAPS, PODS
from rollcall_operator.kube.watch import Watch
from tests.unit.rollcall_local.api_server.objects import Object, config_map, pod
from tests.unit.rollcall_local.api_server.served import TOKEN, Served, served

PATH = "/api/v1/namespaces/ns/configmaps"


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Served]:
    async with served(tmp_path) as made:
        yield made


async def until(happened: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not happened():
            await asyncio.sleep(0.005)


class Client:
    """Reads the events of one WATCH as they come."""

    def __init__(self, api: Served, **query: str) -> None:
        self.query = query
        self.events: list[tuple[str, str]] = []
        self.objects: list[Object] = []
        self._api = api
        self._opened = asyncio.Event()

    async def run(self) -> None:
        """Until the server ends it."""
        events = self._api.client.watch(
            CONFIG_MAPS, namespace="ns", query=self.query, opened=self._opened.set
        )
        async with aclosing(events):
            async for event in events:
                metadata = event["object"]["metadata"]
                name = metadata.get("name", metadata["resourceVersion"])
                self.events.append((event["type"], name))
                self.objects.append(event["object"])

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Client"]:
        task = asyncio.create_task(self.run())
        try:
            async with asyncio.timeout(10):
                await self._opened.wait()
            yield self
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def sees(self, *events: tuple[str, str]) -> None:
        await until(lambda: len(self.events) >= len(events))
        assert self.events == list(events)


async def test_events_come_as_they_happen_from_a_version_on(api: Served) -> None:
    api.store.create(CONFIG_MAPS, config_map("early"))
    since = api.store.version
    api.store.create(CONFIG_MAPS, config_map("a"))
    async with Client(api, resourceVersion=str(since)).running() as client:
        await client.sees(("ADDED", "a"))
        api.store.merge(CONFIG_MAPS, "ns", "a", {"data": {"x": "1"}})
        api.store.create(PODS, pod())
        api.store.delete(CONFIG_MAPS, "ns", "a")
        await client.sees(("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a"))


async def test_without_a_version_what_is_there_comes_first(api: Served) -> None:
    api.store.create(CONFIG_MAPS, config_map("b", labels={"is": "b"}))
    api.store.create(CONFIG_MAPS, config_map("c"))
    async with Client(api, labelSelector="is").running() as client:
        await client.sees(("ADDED", "b"))
        api.store.create(CONFIG_MAPS, config_map("a", labels={"is": "a"}))
        api.store.create(CONFIG_MAPS, config_map("d"))
        api.store.merge(CONFIG_MAPS, "ns", "b", {"metadata": {"labels": None}})
        await client.sees(("ADDED", "b"), ("ADDED", "a"), ("DELETED", "b"))


async def test_one_object_can_be_watched_by_its_name(api: Served) -> None:
    async with Client(api, fieldSelector="metadata.name=b").running() as client:
        for name in ("a", "b", "c"):
            api.store.create(CONFIG_MAPS, config_map(name))
        await client.sees(("ADDED", "b"))


async def test_a_watch_ends_in_its_time_and_says_how_far_it_was(api: Served) -> None:
    since = str(api.store.version)
    client = Client(api, timeoutSeconds="1", allowWatchBookmarks="true", resourceVersion=since)
    async with client.running():
        api.store.create(PODS, pod())
        await client.sees(("BOOKMARK", str(api.store.version)))
    assert set(client.objects[0]) == {"apiVersion", "kind", "metadata"}


async def test_a_bookmark_never_says_more_than_was_sent(
    api: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client begins its next WATCH there, and would miss what came between."""
    send = watch_stream.WatchStream._send

    async def slowly(stream: watch_stream.WatchStream, kind: str, body: Object) -> None:
        await asyncio.sleep(0.05)
        await send(stream, kind, body)

    monkeypatch.setattr(watch_stream.WatchStream, "_send", slowly)

    async def write() -> None:
        for number in range(1000):
            api.store.create(CONFIG_MAPS, config_map(f"a{number}"))
            await asyncio.sleep(0.005)

    since = str(api.store.version)
    client = Client(api, timeoutSeconds="1", allowWatchBookmarks="true", resourceVersion=since)
    writer = asyncio.create_task(write())
    await asyncio.wait_for(client.run(), 10)
    writer.cancel()
    *_, last, bookmark = client.objects
    assert client.events[-1][0] == "BOOKMARK"
    assert bookmark["metadata"]["resourceVersion"] == last["metadata"]["resourceVersion"]


async def test_while_nothing_happens_bookmarks_come_to_those_who_asked(
    api: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_stream, "BOOKMARK_SECONDS", 0.02)
    since = str(api.store.version)
    plain = Client(api, resourceVersion=since)
    asking = Client(api, resourceVersion=since, allowWatchBookmarks="true")
    async with plain.running(), asking.running():
        await until(lambda: len(asking.events) > 2)
        api.store.create(CONFIG_MAPS, config_map())
        await until(lambda: ("ADDED", "a") in plain.events)
    assert plain.events == [("ADDED", "a")]
    assert set(asking.events[:3]) == {("BOOKMARK", since)}


async def test_a_version_that_is_not_known_is_expired(api: Served) -> None:
    client = Client(api, resourceVersion="999999")
    with pytest.raises(ExpiredError, match="not known here; list again"):
        await client.run()


async def test_ten_thousand_changes_between_two_reads_are_caught_up_with(api: Served) -> None:
    kept: dict[str, str] = {}

    def changed(before: Object | None, now: Object | None) -> None:
        name = (now or before or {})["metadata"]["name"]
        kept.pop(name, None)
        if now is not None:
            kept[name] = now["data"]["x"]

    watch = Watch(
        api.client,
        CONFIG_MAPS,
        namespace="ns",
        reduce=lambda found: found,
        changed=changed,
        delay=lambda _: 0.01,
    )
    for name in ("a", "b"):
        api.store.create(CONFIG_MAPS, config_map(name, x="0"))
    running = asyncio.create_task(watch.run())
    try:
        await until(lambda: watch.failing_since is None and len(kept) == 2)
        for number in range(1, 10_001):  # nobody reads meanwhile
            api.store.merge(CONFIG_MAPS, "ns", "a", {"data": {"x": str(number)}})
        assert REMEMBERED < 10_000
        api.store.delete(CONFIG_MAPS, "ns", "b")
        await until(lambda: kept == {"a": "10000"})
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


# --- clients that do not read --------------------------------------------------------------------


async def raw_watch(api: Served) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A WATCH by a client that has read nothing but the answer's beginning."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.setblocking(False)
    port = int(api.server.url.rpartition(":")[2])
    await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", port))
    reader, writer = await asyncio.open_connection(sock=connection, limit=1024)
    request = f"GET {PATH}?watch=true HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
    writer.write(request.encode())
    assert b"200" in await asyncio.wait_for(reader.readline(), 10)
    return reader, writer


def streams(api: Served) -> int:
    """Requests that are being answered."""
    runner: Any = api.server._runner
    return len(runner.server.connections)


async def test_a_client_that_stops_reading_is_let_go(
    api: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_stream, "SLOW_SECONDS", 0.1)
    _, writer = await raw_watch(api)
    before = streams(api)
    large = "x" * 50_000
    async with Client(api).running() as other:
        for number in range(200):  # 10 MB, more than the sockets hold
            api.store.create(CONFIG_MAPS, config_map(f"a{number}", x=large))
        await until(lambda: len(other.events) == 200)
        await until(lambda: streams(api) == before)  # the other one's is there, this one's is not
        api.store.create(CONFIG_MAPS, config_map("last"))
        await until(lambda: other.events[-1] == ("ADDED", "last"))
    writer.close()


async def test_what_waits_for_a_slow_client_is_little(
    api: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server holds what it sends now, not all that comes meanwhile."""
    taken: list[int] = []
    take = change_log.ServedWatch.take

    def counted(watch: change_log.ServedWatch) -> list[change_log.Event]:
        events = take(watch)
        taken.append(len(events))
        return events

    monkeypatch.setattr(change_log.ServedWatch, "take", counted)
    reader, writer = await raw_watch(api)
    large = "x" * 12_000
    for number in range(600):
        api.store.create(CONFIG_MAPS, config_map(f"a{number}", x=large))
    seen, end = 0, b""
    while seen < 600:
        found = end + await asyncio.wait_for(reader.read(1 << 20), 10)
        seen += found.count(b'{"type":"ADDED"')
        end = found[-14:]
    assert max(taken) == MOST_AT_ONCE
    writer.close()


async def test_a_client_that_is_gone_is_noticed(
    api: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_stream, "BOOKMARK_SECONDS", 0.02)
    before = streams(api)
    _, writer = await raw_watch(api)
    await until(lambda: streams(api) == before + 1)
    writer.transport.abort()
    await until(lambda: streams(api) == before)


async def test_watches_end_with_the_server(tmp_path: Path) -> None:
    async with served(tmp_path) as api:
        reader, writer = await raw_watch(api)
    await asyncio.wait_for(reader.read(), 10)
    writer.close()
