"""A rollout that leaves hands back what it will not finish, and delivers the rest."""

import asyncio
from typing import Any

from rollcall_protocol.messages import Draining, LeaseReturned, MemberMessage
from rollcall_runtime.rollout.drain import Drain


class FakeWork:
    """Stands for the generator and for the sender of completions."""

    def __init__(self, *, waiting: list[str], running: list[str]) -> None:
        self.waiting, self.running = waiting, running
        self.done = asyncio.Event()
        self.flushed = False
        self.backlog = 0

    def surrender(self) -> list[str]:
        given, self.waiting = self.waiting, []
        return given

    def abandon(self) -> list[str]:
        given, self.running = self.running, []
        return given

    async def idle(self) -> None:
        await self.done.wait()

    async def flush(self, seconds: float) -> bool:
        assert seconds > 0
        self.flushed = True
        return True


class Gauge:
    drain_seconds: Any

    def set(self, seconds: float) -> None:
        self.seconds = seconds


def drain_of(work: FakeWork, *, timeout: float) -> tuple[Drain, list[MemberMessage]]:
    sent: list[MemberMessage] = []
    metrics: Any = Gauge()
    metrics.drain_seconds = metrics
    stand_in: Any = work
    drain = Drain(
        timeout=timeout, generator=stand_in, sender=stand_in, send=sent.append, metrics=metrics
    )
    return drain, sent


async def test_what_runs_is_finished_and_what_waits_is_handed_back() -> None:
    work = FakeWork(waiting=["b"], running=["a"])
    drain, sent = drain_of(work, timeout=5)
    drain.begin("SIGTERM")
    assert drain.draining
    assert isinstance(sent[0], Draining)
    assert sent[1:] == [LeaseReturned("b")]
    completing = asyncio.create_task(drain.complete())
    await asyncio.sleep(0.01)
    assert not completing.done()
    work.done.set()
    await asyncio.wait_for(completing, 5)
    assert work.flushed
    assert work.running == ["a"], "it was finished, not handed back"


async def test_after_its_bound_what_runs_is_handed_back_too() -> None:
    work = FakeWork(waiting=[], running=["a"])
    drain, sent = drain_of(work, timeout=0.02)
    drain.begin("scaled down")
    await asyncio.wait_for(drain.complete(), 5)
    assert sent[1:] == [LeaseReturned("a")]
    assert work.flushed


async def test_a_second_request_changes_nothing() -> None:
    work = FakeWork(waiting=[], running=[])
    drain, sent = drain_of(work, timeout=5)
    drain.begin("scaled down")
    drain.begin("SIGTERM")
    (message,) = sent
    assert isinstance(message, Draining)
    assert message.reason == "scaled down"
