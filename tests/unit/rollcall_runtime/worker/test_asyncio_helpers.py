"""The first coroutine to end decides, and ends the others; the event loop gets its turn."""

import asyncio
import sys
from collections.abc import Iterator

import pytest

from rollcall_runtime.worker.asyncio_helpers import (
    favour_event_loop,
    first_of,
)


class Worker:
    """Waits until it is cancelled, and takes a moment for its clean-up."""

    def __init__(self) -> None:
        self.started = self.cleaned_up = False

    async def run(self) -> None:
        self.started = True
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)
            self.cleaned_up = True


async def returns() -> None:
    await asyncio.sleep(0)


async def raises(error: Exception) -> None:
    await asyncio.sleep(0)
    raise error


@pytest.fixture
def pythons_own_switch_interval() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.005)
    yield
    sys.setswitchinterval(before)


async def test_the_others_are_cancelled_and_have_cleaned_up_when_the_first_returned() -> None:
    others = Worker(), Worker()
    async with asyncio.timeout(5):
        await first_of(others[0].run(), returns(), others[1].run())
    assert [(one.started, one.cleaned_up) for one in others] == [(True, True), (True, True)]


async def test_the_first_error_is_raised_as_it_is_after_the_others_have_cleaned_up() -> None:
    other, error = Worker(), ConnectionResetError("gone")
    async with asyncio.timeout(5):
        with pytest.raises(ConnectionResetError) as caught:
            await first_of(other.run(), raises(error))
    assert caught.value is error
    assert other.cleaned_up


async def test_an_error_is_raised_though_another_returned_in_the_same_turn() -> None:
    with pytest.raises(ConnectionResetError, match="gone"):
        await first_of(returns(), raises(ConnectionResetError("gone")))


async def test_an_error_of_the_clean_up_does_not_hide_what_ended_the_work() -> None:
    async def fails_when_cancelled() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError("clean-up")

    async with asyncio.timeout(5):
        with pytest.raises(ConnectionResetError, match="gone"):
            await first_of(fails_when_cancelled(), raises(ConnectionResetError("gone")))


async def test_a_cancelled_caller_leaves_nothing_running() -> None:
    workers = Worker(), Worker()
    task = asyncio.create_task(first_of(*(one.run() for one in workers)))
    await asyncio.sleep(0.01)
    task.cancel()
    async with asyncio.timeout(5):
        with pytest.raises(asyncio.CancelledError):
            await task
    assert [one.cleaned_up for one in workers] == [True, True]


@pytest.mark.usefixtures("pythons_own_switch_interval")
def test_threads_switch_as_often_as_the_event_loop_needs() -> None:
    favour_event_loop()
    assert sys.getswitchinterval() == pytest.approx(0.001)
