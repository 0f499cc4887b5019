"""The half that agent and sender share: an error of an engine is reported at once."""

import asyncio
from collections.abc import Sequence

import pytest

from rollcall_protocol.wire.ids import Lineage, MemberId, SessionId, Version
from rollcall_protocol.wire.messages import (
    Ack,
    AckPhase,
    Join,
    MemberMessage,
    Prepare,
    Seat,
    Stage,
    WeightDelta,
)
from rollcall_protocol.wire.weight_manifest import WeightManifest
from rollcall_runtime.membership.driver import MemberDriver
from rollcall_runtime.sync.engine import SyncSession
from tests.unit.rollcall_runtime.coordinator.fake_group import MemoryEngine, NothingToLoad

ME = MemberId("uid-1", "b1")
SESSION = SessionId(1, 1, 1)
VERSION = Version(Lineage(1, 1), 1)
MANIFEST = WeightManifest(tensors=(), total_bytes=0, bucket_bytes=1, digests=())


class Breaks(NothingToLoad):
    """A WeightHandler that raises an error of no declared type."""

    async def transfer(
        self,
        session: SyncSession,
        version: Version,
        manifest: WeightManifest,
        delta: WeightDelta | None,
    ) -> None:
        raise KeyError("a bug")


async def test_an_error_that_no_engine_should_raise_is_reported_and_suspects_no_member(
    caplog: pytest.LogCaptureFixture,
) -> None:
    said: asyncio.Queue[MemberMessage] = asyncio.Queue()
    driver = MemberDriver(
        member=ME,
        group="g",
        engine=MemoryEngine(),
        weight_handler=Breaks(),
        send=said.put_nowait,
        join_timeout=5,
    )
    async with asyncio.timeout(5):
        driver.handle(Prepare(SESSION, (Seat(ME, "127.0.0.1", ""),)))
        driver.handle(Join(SESSION))
        assert await said.get() == Ack(SESSION, AckPhase.PREPARE)
        assert await said.get() == Ack(SESSION, AckPhase.JOIN)
        driver.handle(Stage(SESSION, VERSION, MANIFEST))
        assert await said.get() == Ack(SESSION, AckPhase.STAGE, VERSION, "KeyError: 'a bug'")
    assert "raised an undeclared error" in caplog.text
    await driver.close()


class Stopwatch(MemoryEngine):
    """Records what each join may take, and the stretch that its session was opened with."""

    def __init__(self) -> None:
        self.joins: list[tuple[float, float]] = []

    def open_session(
        self, *, group: str, session: SessionId, seats: Sequence[Seat], rank: int
    ) -> SyncSession:
        opened = super().open_session(group=group, session=session, seats=seats, rank=rank)
        stretch = self.stretch

        def join(*, timeout: float) -> None:
            self.joins.append((stretch, timeout))

        opened.join = join  # type: ignore[method-assign]
        return opened


async def test_the_engine_has_as_much_longer_as_the_coordinator_says() -> None:
    said: asyncio.Queue[MemberMessage] = asyncio.Queue()
    engine = Stopwatch()
    driver = MemberDriver(
        member=ME,
        group="g",
        engine=engine,
        weight_handler=Breaks(),
        send=said.put_nowait,
        join_timeout=5,
    )
    async with asyncio.timeout(5):
        for attempt, stretch in ((1, 3.0), (2, 1.0)):
            session = SessionId(1, 1, attempt)
            driver.handle(Prepare(session, (Seat(ME, "127.0.0.1", ""),)))
            driver.handle(Join(session, stretch))
            assert await said.get() == Ack(session, AckPhase.PREPARE)
            assert await said.get() == Ack(session, AckPhase.JOIN)
    assert engine.joins == [(3.0, 15.0), (1.0, 5.0)]
    await driver.close()
