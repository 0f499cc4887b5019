"""A watch can be asked to report all that has happened so far, where nothing happens, too."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from rollcall_operator.kube import watch as watch_module
from rollcall_operator.kube.resources import PODS
from rollcall_operator.kube.watch import Watch
from tests.unit.rollcall_operator.kube.api_server import (
    ApiServer,
    Difference,
    client_of,
    name_and_version,
    pod,
    until,
)


@dataclass
class CatchingUp:
    """A watch that has listed one pod, `a`, in version 7, and is asked to catch up, when
    the API server has come to `newest`.
    """

    server: ApiServer
    differences: list[Difference]
    catching_up: asyncio.Task[None]


def bookmark(version: int) -> dict[str, dict[str, str]]:
    return {"metadata": {"resourceVersion": str(version)}}


@asynccontextmanager
async def watch_asked(
    folder: Path, *, refusals: int = 0, newest: int = 9
) -> AsyncIterator[CatchingUp]:
    server = ApiServer(version=7, pods=[pod("a", 1)])
    differences: list[Difference] = []
    async with client_of(folder, server.answer) as client:
        watch = Watch(
            client,
            PODS,
            namespace="ns",
            reduce=name_and_version,
            changed=lambda before, now: differences.append((before, now)),
            delay=lambda _: 0.01,
        )
        running = asyncio.create_task(watch.run())
        await until(lambda: server.watched_from == ["7"])
        differences.clear()
        server.version = newest
        server.refusals = [503] * refusals
        catching_up = asyncio.create_task(watch.catch_up())
        try:
            yield CatchingUp(server, differences, catching_up)
            assert not running.done(), running.exception()
        finally:
            for task in (running, catching_up):
                task.cancel()
            await asyncio.gather(running, catching_up, return_exceptions=True)


@pytest.fixture
def many(monkeypatch: pytest.MonkeyPatch) -> None:
    """One object is more than fits into a page."""
    monkeypatch.setattr(watch_module, "PAGE", 0)


@pytest.mark.parametrize("refusals", [0, 3])
async def test_what_fits_into_a_page_is_listed_again(tmp_path: Path, refusals: int) -> None:
    async with watch_asked(tmp_path, refusals=refusals) as asked:
        asked.server.pods = [pod("b", 8)]
        await asyncio.wait_for(asked.catching_up, 5)
        assert asked.differences == [(None, "b@8"), ("a@1", None)]
        await until(lambda: asked.server.watched_from == ["7", "9"])
        assert asked.server.queries[-1]["timeoutSeconds"] == "290"


@pytest.mark.usefixtures("many")
@pytest.mark.parametrize("refusals", [0, 3])
async def test_a_kind_that_does_not_change_is_asked_by_a_short_watch(
    tmp_path: Path, refusals: int
) -> None:
    async with watch_asked(tmp_path, refusals=refusals) as asked:
        await until(lambda: len(asked.server.watched_from) == 2)
        assert asked.server.watched_from == ["7", "7"]
        assert [query.get("timeoutSeconds") for query in asked.server.queries[1:]] == [
            "290",
            None,
            "3",
        ]
        assert asked.server.queries[2]["limit"] == "1"
        asked.server.send("BOOKMARK", bookmark(9))
        await asyncio.wait_for(asked.catching_up, 5)
        asked.server.end_watch()
        await until(lambda: asked.server.watched_from == ["7", "7", "9"])
        assert asked.server.queries[-1]["timeoutSeconds"] == "290"
    assert asked.differences == []


@pytest.mark.usefixtures("many")
async def test_all_that_had_happened_before_is_reported_first(tmp_path: Path) -> None:
    async with watch_asked(tmp_path) as asked:
        await until(lambda: len(asked.server.watched_from) == 2)
        asked.server.send("ADDED", pod("b", 8))
        asked.server.send("BOOKMARK", bookmark(8))
        await until(lambda: bool(asked.differences))
        assert not asked.catching_up.done()
        asked.server.send("DELETED", pod("a", 9))
        await asyncio.wait_for(asked.catching_up, 5)
    assert asked.differences == [(None, "b@8"), ("a@1", None)]


@pytest.mark.usefixtures("many")
async def test_what_no_watch_reports_in_time_is_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_module, "_CATCH_UP_SECONDS", 0.2)
    async with watch_asked(tmp_path) as asked:
        asked.server.pods = [pod("b", 8)]
        await asyncio.wait_for(asked.catching_up, 5)
        assert asked.differences == [(None, "b@8"), ("a@1", None)]
        await until(lambda: asked.server.watched_from == ["7", "7", "9"])


@pytest.mark.usefixtures("many")
async def test_what_has_been_reported_already_is_not_waited_for(tmp_path: Path) -> None:
    async with watch_asked(tmp_path, newest=7) as asked:
        await asyncio.wait_for(asked.catching_up, 5)
        assert asked.server.watched_from == ["7"]
