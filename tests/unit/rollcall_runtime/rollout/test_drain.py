"""A rollout that leaves hands back what it will not finish, and delivers the rest."""

import asyncio
from typing import Any

from rollcall_protocol.wire.ids import Lineage, Version
from rollcall_protocol.wire.messages import (
    Draining,
    GenerationProgress,
    MemberMessage,
    PromptLeaseReturned,
)
from rollcall_protocol.wire.partial_responses import Response
from rollcall_runtime.rollout.drain import Drain
from rollcall_runtime.rollout.lease_progress import LeaseProgress, LeaseProgressReporter
from tests.unit.rollcall_runtime.rollout.fake_engine import lease

WAITS = LeaseProgress(lease(1))
RUNS = LeaseProgress(lease(0), Version(Lineage(1, 1), 7), (Response((3,), (-1.0,), (7,)),) * 2)


class FakeWork:
    """Stands for the generator, for the front's requests, and for the sender of completions."""

    def __init__(self, *, waiting: list[LeaseProgress], running: list[LeaseProgress]) -> None:
        self.waiting, self.running = waiting, running
        self.done = asyncio.Event()
        self.flushed = False
        self.backlog = 0
        self.cut_off = False

    def return_waiting(self) -> list[LeaseProgress]:
        given, self.waiting = self.waiting, []
        return given

    def return_all(self) -> list[LeaseProgress]:
        given, self.running = self.running, []
        return given

    def lease_progress(self) -> list[LeaseProgress]:
        return [*self.running, *self.waiting]

    async def idle(self) -> None:
        await self.done.wait()

    def end(self) -> None:
        self.cut_off = True

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
        timeout=timeout,
        generator=stand_in,
        endpoint=stand_in,
        sender=stand_in,
        reporter=LeaseProgressReporter(sent.append),
        send=sent.append,
        metrics=metrics,
    )
    return drain, sent


async def test_what_runs_is_finished_and_what_waits_is_handed_back() -> None:
    work = FakeWork(waiting=[WAITS], running=[RUNS])
    drain, sent = drain_of(work, timeout=5)
    drain.begin("SIGTERM")
    assert drain.draining
    assert isinstance(sent[0], Draining)
    assert sent[-1] == PromptLeaseReturned(WAITS.lease.lease_id)
    completing = asyncio.create_task(drain.complete())
    await asyncio.sleep(0.01)
    assert not completing.done()
    work.done.set()
    await asyncio.wait_for(completing, 5)
    assert work.flushed
    assert work.running == [RUNS], "it was finished, not handed back"
    assert not work.cut_off


async def test_after_its_bound_what_runs_is_handed_back_too() -> None:
    work = FakeWork(waiting=[], running=[RUNS])
    drain, sent = drain_of(work, timeout=0.02)
    drain.begin("scaled down")
    await asyncio.wait_for(drain.complete(), 5)
    assert sent[-1] == PromptLeaseReturned(RUNS.lease.lease_id)
    progress = next(message for message in sent if isinstance(message, GenerationProgress))
    assert [response.tokens for response in progress.reports[0].responses] == [(3,), (3,)]
    assert work.flushed
    assert work.cut_off, "the front continues its requests elsewhere"


async def test_a_second_request_changes_nothing() -> None:
    work = FakeWork(waiting=[], running=[])
    drain, sent = drain_of(work, timeout=5)
    drain.begin("scaled down")
    drain.begin("SIGTERM")
    (message,) = sent
    assert isinstance(message, Draining)
    assert message.reason == "scaled down"
