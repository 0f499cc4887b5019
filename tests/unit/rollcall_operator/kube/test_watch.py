"""Nothing is missed: what changes while no WATCH is open shows when the next one opens."""

import asyncio
from pathlib import Path

import pytest

from tests.unit.rollcall_operator.kube.api_server import (
    ApiServer,
    Difference,
    client_of,
    pod,
    until,
)
from tests.unit.rollcall_operator.kube.watched_pods import watching


async def reported(differences: list[Difference], *expected: Difference) -> None:
    """Wait until these differences, and no others, were reported; forget them."""
    async with asyncio.timeout(5):
        while len(differences) < len(expected):
            await asyncio.sleep(0.005)
    assert differences == list(expected)
    differences.clear()


async def test_all_pages_of_the_list_and_then_each_event(tmp_path: Path) -> None:
    server = ApiServer(version=7, pods=[pod(name, 1) for name in "abcde"], page=2)
    async with client_of(tmp_path, server.answer) as client, watching(client) as (_, differences):
        await reported(differences, *((None, f"{name}@1") for name in "abcde"))
        server.send("ADDED", pod("f", 8))
        server.send("MODIFIED", pod("a", 9))
        server.send("DELETED", pod("b", 10))
        await reported(differences, (None, "f@8"), ("a@1", "a@9"), ("b@1", None))
    assert server.lists == 3
    assert server.watched_from == ["7"]
    assert {query["labelSelector"] for query in server.queries} == {"rollcall.dev/job"}
    assert server.queries[-1]["allowWatchBookmarks"] == "true"


async def test_a_watch_that_ends_goes_on_where_it_was_by_events_and_bookmarks(
    tmp_path: Path,
) -> None:
    server = ApiServer(version=7)
    async with client_of(tmp_path, server.answer) as client, watching(client) as (_, differences):
        server.send("ADDED", pod("a", 8))
        server.end_watch()
        await reported(differences, (None, "a@8"))
        server.send("BOOKMARK", {"metadata": {"resourceVersion": "20"}})
        server.end_watch()
        await until(lambda: len(server.watched_from) == 3)
    assert server.watched_from == ["7", "8", "20"]
    assert server.lists == 1


@pytest.mark.parametrize("by_event", [True, False])
async def test_a_forgotten_version_lists_again_and_finds_what_was_missed(
    tmp_path: Path, by_event: bool
) -> None:
    server = ApiServer(version=7, pods=[pod("stays", 1), pod("changes", 2), pod("goes", 3)])
    async with client_of(tmp_path, server.answer) as client, watching(client) as (_, differences):
        await until(lambda: len(differences) == 3)
        differences.clear()
        server.version, server.pods = 90, [pod("stays", 1), pod("changes", 88), pod("comes", 89)]
        if by_event:
            server.send("ERROR", {"metadata": {}, "code": 410, "reason": "Expired"})
        else:
            server.refusals = [410]
            server.end_watch()
        await reported(
            differences,
            ("stays@1", "stays@1"),
            ("changes@2", "changes@88"),
            (None, "comes@89"),
            ("goes@3", None),
        )
        await until(lambda: server.watched_from[-1] == "90")


@pytest.mark.parametrize("status", [401, 403, 404, 429, 500, 503])
async def test_failures_are_waited_out_longer_and_longer(tmp_path: Path, status: int) -> None:
    failures: list[int] = []

    def delay(count: int) -> float:
        failures.append(count)
        return 0.0

    server = ApiServer(version=7, pods=[pod("a", 1)])
    async with (
        client_of(tmp_path, server.answer) as client,
        watching(client, delay=delay) as (_, differences),
    ):
        await reported(differences, (None, "a@1"))
        server.refusals = [status] * 6
        server.end_watch()
        await until(lambda: len(server.watched_from) == 2)
        # The WATCH that ended at once was the first; of each two 401 one has credentials read anew.
        refused = 3 if status == 401 else 6
        assert failures == list(range(1, 2 + refused))
        server.send("MODIFIED", pod("a", 8))
        await reported(differences, ("a@1", "a@8"))
        failures.clear()
        server.refusals = [status] * 2
        server.end_watch()
        await until(lambda: len(server.watched_from) == 3)
        assert failures == ([1] if status == 401 else [1, 2]), "from the start, after an event"
    assert server.lists == 1


@pytest.mark.parametrize(
    "line",
    [b"{\n", b"[]\n", b'{"type": "ADDED"}\n', b'{"type": "ADDED", "object": {}}\n'],
)
async def test_what_is_no_event_opens_another_watch(tmp_path: Path, line: bytes) -> None:
    server = ApiServer(version=7)
    async with client_of(tmp_path, server.answer) as client, watching(client) as (_, differences):
        server.send("ADDED", pod("a", 8))
        server.send_line(line)
        await reported(differences, (None, "a@8"))
        await until(lambda: server.watched_from == ["7", "8"])


async def test_a_watch_that_ends_at_once_is_opened_again_after_a_pause(tmp_path: Path) -> None:
    failures: list[int] = []

    def delay(count: int) -> float:
        failures.append(count)
        return 0.0

    server = ApiServer(version=7)
    for _ in range(5):
        server.end_watch()
    async with client_of(tmp_path, server.answer) as client, watching(client, delay=delay):
        await until(lambda: len(server.watched_from) == 6)
    assert failures == [1, 2, 3, 4, 5]
