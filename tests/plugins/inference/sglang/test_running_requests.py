"""An update that waits: for the requests that run, while new ones wait for it."""

import asyncio

import pytest

from rollcall_plugins.inference.sglang.running_requests import RunningRequests


async def test_none_runs_and_none_begins_meanwhile() -> None:
    requests, happened, may_end = RunningRequests(), list[str](), asyncio.Event()

    async def request(name: str, until: asyncio.Event | None = None) -> None:
        async with requests.one():
            happened.append(f"{name} begins")
            if until is not None:
                await until.wait()
        happened.append(f"{name} ends")

    async def update() -> None:
        async with requests.none(seconds=5):
            happened.append("update begins")
            await asyncio.sleep(0.01)
            happened.append("update ends")

    async with asyncio.TaskGroup() as group:
        group.create_task(request("first", may_end))
        await asyncio.sleep(0)
        group.create_task(update())
        await asyncio.sleep(0)
        group.create_task(request("second"))
        await asyncio.sleep(0)
        may_end.set()
    first, update_, second = (
        [f"{name} begins", f"{name} ends"] for name in ("first", "update", "second")
    )
    assert happened == first + update_ + second


async def test_a_wait_that_is_too_long_lets_requests_begin_again() -> None:
    requests = RunningRequests()
    async with requests.one():
        with pytest.raises(TimeoutError, match="1 responses still run"):
            async with requests.none(seconds=0.01):
                pass
        async with asyncio.timeout(1), requests.one():
            pass
