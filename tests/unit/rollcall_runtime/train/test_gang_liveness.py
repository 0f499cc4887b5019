"""Ranks that watch each other: one that dies, hangs or stays away ends the others' work."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from rollcall_runtime.train import gang_liveness as gang_module
from rollcall_runtime.train.gang_liveness import Gang, GangBrokenError, watch_leader
from rollcall_runtime.worker.identity.tls import client_context
from tests.unit.rollcall_runtime.credentials import introduced

HEARTBEAT, SUSPECT_AFTER = 0.02, 0.1


@asynccontextmanager
async def leader(
    size: int = 2, refused: Callable[[str], None] = lambda _: None
) -> AsyncIterator[tuple[Gang, str]]:
    gang = Gang(size, heartbeat=HEARTBEAT, suspect_after=SUSPECT_AFTER, refused=refused)
    app = web.Application()
    for rank in range(1, max(size, 2)):
        serve = introduced(
            gang.serve, pod=f"a-trainer-{rank}", pod_uid=f"uid-{rank}", trainer_ordinal=rank
        )
        app.router.add_get(f"/gang/{rank}", serve)
    async with TestServer(app) as server, asyncio.timeout(10):
        yield gang, str(server.make_url("/gang"))


def follower(
    url: str, leaving: asyncio.Event, *, rank: int = 1, heartbeat: float = HEARTBEAT
) -> "asyncio.Task[None]":
    held = watch_leader(
        f"{url}/{rank}",
        rank=rank,
        token=lambda: "own",
        tls=lambda: client_context(""),
        heartbeat=heartbeat,
        suspect_after=SUSPECT_AFTER,
        leaving=leaving,
    )
    return asyncio.create_task(held)


async def test_while_all_ranks_live_none_fails_and_a_farewell_ends_the_streams() -> None:
    async with leader(size=3) as (gang, url):
        leaving = asyncio.Event()
        watch = asyncio.create_task(gang.watch())
        others = [follower(url, leaving, rank=rank) for rank in (1, 2)]
        done, _ = await asyncio.wait([watch, *others], timeout=gang_module.PATIENCE * SUSPECT_AFTER)
        assert not done
        gang.leave()
        await asyncio.gather(watch, *others)


async def test_another_rank_may_leave_first() -> None:
    async with leader() as (gang, url):
        leaving = asyncio.Event()
        watch = asyncio.create_task(gang.watch())
        other = follower(url, leaving)
        await asyncio.sleep(2 * HEARTBEAT)
        leaving.set()
        await other
        await asyncio.sleep(2 * HEARTBEAT)
        assert not watch.done()
        watch.cancel()


async def test_a_rank_that_dies_is_detected_at_once() -> None:
    async with leader() as (gang, url):
        watch = asyncio.create_task(gang.watch())
        other = follower(url, asyncio.Event())
        await asyncio.sleep(2 * HEARTBEAT)
        other.cancel()
        with pytest.raises(GangBrokenError, match="rank 1: connection lost"):
            await watch


async def test_a_rank_that_hangs_is_detected_after_the_bound() -> None:
    async with leader() as (gang, url):
        other = follower(url, asyncio.Event(), heartbeat=100)
        with pytest.raises(GangBrokenError, match=r"rank 1: nothing received for 0\.3 s"):
            await gang.watch()
        other.cancel()


async def test_a_leader_that_dies_or_hangs_is_detected_too() -> None:
    async with leader() as (_, url):
        other = follower(url, asyncio.Event())
        await asyncio.sleep(2 * HEARTBEAT)
    with pytest.raises(GangBrokenError, match="rank 0: connection lost"):
        await other
    async with leader() as (gang, url):
        gang._heartbeat = 100
        with pytest.raises(GangBrokenError, match=r"rank 0: nothing received for 0\.3 s"):
            await follower(url, asyncio.Event())


async def test_a_rank_that_never_comes_and_a_leader_that_never_listens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gang_module, "CONNECT_SECONDS", 0.1)
    async with leader(size=3) as (gang, url):
        other = follower(url, asyncio.Event())
        with pytest.raises(GangBrokenError, match=r"rank 2: no stream in 0\.1 s"):
            await gang.watch()
        other.cancel()
    with pytest.raises(GangBrokenError, match="rank 0 does not listen"):
        await follower(url, asyncio.Event())


async def test_a_trainer_of_one_rank_has_no_other_rank_to_watch() -> None:
    async with leader(size=1) as (gang, _):
        watch = asyncio.create_task(gang.watch())
        await asyncio.sleep(2 * HEARTBEAT)
        gang.leave()
        await watch


@pytest.mark.parametrize("rank", ["7", "0", "-1", "", "one", "9" * 5000, "\u0661", "1"])
async def test_a_stream_of_no_rank_or_of_one_that_is_here_ends_nothing(rank: str) -> None:
    refused: list[str] = []
    async with leader(refused=refused.append) as (gang, url):
        leaving = asyncio.Event()
        watch = asyncio.create_task(gang.watch())
        other = follower(url, leaving)
        await asyncio.sleep(2 * HEARTBEAT)
        async with aiohttp.ClientSession() as session:
            with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
                await session.ws_connect(f"{url}/1", params={"rank": rank})
        assert caught.value.status == (409 if rank == "1" else 404)
        assert refused == ["gang_rank"]
        await asyncio.sleep(2 * HEARTBEAT)
        assert not watch.done()
        gang.leave()
        await asyncio.gather(watch, other)


async def test_a_stream_in_another_pods_name_ends_nothing() -> None:
    refused: list[str] = []
    async with leader(size=3, refused=refused.append) as (gang, url):
        watch = asyncio.create_task(gang.watch())
        async with aiohttp.ClientSession() as session:
            with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
                await session.ws_connect(f"{url}/1", params={"rank": "2"})
        assert caught.value.status == 403
        assert refused == ["impersonated"]
        await asyncio.sleep(2 * HEARTBEAT)
        assert not watch.done()
        watch.cancel()
