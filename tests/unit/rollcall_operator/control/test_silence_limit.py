"""A stream on which nothing arrives ends; one on which something does goes on."""

import asyncio

import pytest

from rollcall_operator.control.silence_limit import SilenceError, silence_limit

pytestmark = pytest.mark.asyncio(loop_factories=["skips_waits"])


async def test_silence_ends_what_waits_for_the_next_bytes() -> None:
    async def read() -> None:
        async with silence_limit(0.1):
            await asyncio.sleep(30)

    with pytest.raises(SilenceError, match=r"it has sent nothing for 0\.1 s"):
        await read()


async def test_what_arrives_puts_the_end_off() -> None:
    loop = asyncio.get_running_loop()
    began, last = loop.time(), 0.0

    async def read() -> None:
        nonlocal last
        async with silence_limit(0.3) as arrived:
            for _ in range(4):
                await asyncio.sleep(0.15)
                arrived()
                last = loop.time()
            await asyncio.sleep(30)

    with pytest.raises(SilenceError):
        await read()
    assert last - began == pytest.approx(0.6)
    assert loop.time() - last == pytest.approx(0.3)


async def test_what_ends_before_leaves_no_timer_and_other_errors_stay() -> None:
    async def fail() -> None:
        async with silence_limit(0.05):
            raise TimeoutError("the connection")

    async with silence_limit(0.05):
        pass
    with pytest.raises(TimeoutError, match="the connection"):
        await fail()
    await asyncio.sleep(0.1)


async def test_a_cancelled_read_is_no_silence() -> None:
    async def read() -> None:
        async with silence_limit(30):
            await asyncio.sleep(30)

    task = asyncio.create_task(read())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
