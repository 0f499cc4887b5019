"""Waits that end when their pod is to end."""

import asyncio

import pytest

from rollcall_local.kubelet.pod_stop import PodStop

pytestmark = pytest.mark.asyncio(loop_factories=["skips_waits"])


async def after(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "done"


async def test_work_is_done_unless_the_pod_is_stopped_before() -> None:
    stop = PodStop()
    asyncio.get_running_loop().call_later(5, stop.set)
    assert await stop.unless_set(after(4)) == "done"
    assert await stop.unless_set(after(4)) is None
    assert await stop.unless_set(after(0)) is None
    assert asyncio.get_running_loop().time() == 5
    assert len(asyncio.all_tasks()) == 1


async def test_an_error_of_the_work_is_raised() -> None:
    async def broken() -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await PodStop().unless_set(broken())


async def test_work_ends_with_who_waits_for_it() -> None:
    waiting = asyncio.create_task(PodStop().unless_set(after(4)))
    await asyncio.sleep(1)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert len(asyncio.all_tasks()) == 1
