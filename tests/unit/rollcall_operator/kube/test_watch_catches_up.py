"""A watch can be asked to report all that has happened so far, where nothing happens, too."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rollcall_operator.kube import watch as watch_module
from tests.unit.rollcall_operator.kube.api_server import pod, until
from tests.unit.rollcall_operator.kube.watched_pods import Watched


@pytest.fixture
def many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two objects are more than fit into a page."""
    monkeypatch.setattr(watch_module, "PAGE", 1)


def bookmark(version: int) -> dict[str, dict[str, str]]:
    return {"metadata": {"resourceVersion": str(version)}}


@asynccontextmanager
async def catching_up(
    folder: Path, *, newest: int = 9, refusals: int = 0
) -> AsyncIterator[tuple[Watched, asyncio.Task[None]]]:
    """The watch has listed version 7, and the API server has come to `newest`."""
    async with Watched().run(folder) as watched:
        watched.server.version = newest
        watched.server.refusals = [503] * refusals
        task = asyncio.create_task(watched.watch.catch_up())
        yield watched, task
        await asyncio.wait_for(task, 5)


@pytest.mark.parametrize("refusals", [0, 3])
async def test_what_fits_into_a_page_is_listed_again(tmp_path: Path, refusals: int) -> None:
    async with catching_up(tmp_path, refusals=refusals) as (watched, _):
        watched.server.pods = [pod("b", 8)]
    assert watched.differences == [("b@2", "b@8"), ("a@1", None)]
    assert watched.watch.reached == 9


@pytest.mark.usefixtures("many")
@pytest.mark.parametrize("refusals", [0, 3])
async def test_a_kind_that_does_not_change_is_asked_by_a_short_watch(
    tmp_path: Path, refusals: int
) -> None:
    async with catching_up(tmp_path, refusals=refusals) as (watched, task):
        server = watched.server
        await until(lambda: server.watched_from == ["7", "7"])
        assert server.queries[-2]["limit"] == "1"
        assert server.queries[-1]["timeoutSeconds"] == "3"
        server.send("BOOKMARK", bookmark(9))
        await asyncio.wait_for(task, 5)
        server.end_watch()
        await until(lambda: server.watched_from == ["7", "7", "9"])
        assert server.queries[-1]["timeoutSeconds"] == "290"
    assert watched.differences == []


@pytest.mark.usefixtures("many")
async def test_all_that_had_happened_before_is_reported_first(tmp_path: Path) -> None:
    async with catching_up(tmp_path) as (watched, task):
        await until(lambda: len(watched.server.watched_from) == 2)
        watched.server.send("ADDED", pod("c", 8))
        watched.server.send("BOOKMARK", bookmark(8))
        assert await watched.reaches(8) == [(None, "c@8")]
        assert not task.done()
        watched.server.send("DELETED", pod("a", 9))
    assert watched.differences == [("a@1", None)]


@pytest.mark.usefixtures("many")
async def test_what_no_watch_reports_in_time_is_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_module, "_CATCH_UP_SECONDS", 0.2)
    async with catching_up(tmp_path) as (watched, _):
        watched.server.pods = [pod("b", 8)]
    assert watched.differences == [("b@2", "b@8"), ("a@1", None)]


@pytest.mark.usefixtures("many")
async def test_what_has_been_reported_already_is_not_waited_for(tmp_path: Path) -> None:
    async with catching_up(tmp_path, newest=7) as (watched, _):
        pass
    assert watched.server.watched_from == ["7"]
