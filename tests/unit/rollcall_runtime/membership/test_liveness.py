"""Silence is found after the bound, and only where there is silence."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import cast

import pytest

from rollcall_protocol.membership.stretched_bounds import SilenceBound
from rollcall_runtime.membership.liveness import LivenessMonitor, SilentError

BOUND = 0.4


@dataclass
class Ends:
    """One end under watch, and the streams of both."""

    liveness: LivenessMonitor
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    other: asyncio.StreamWriter


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[Ends]:
    accepted: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()

    async def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.put_nowait(writer)

    async with await asyncio.start_server(accept, "127.0.0.1", port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        other = await accepted.get()
        try:
            transport = cast("asyncio.Transport", writer.transport)
            yield Ends(
                LivenessMonitor(transport, SilenceBound(BOUND, heartbeat=BOUND / 2)),
                reader,
                writer,
                other,
            )
        finally:
            for end in (other, writer):
                end.transport.abort()
            await asyncio.sleep(0.01)  # for the transports to close


async def test_silence_for_the_bound_ends_the_connection(unused_tcp_port: int) -> None:
    async with connected(unused_tcp_port) as ends:
        began = time.monotonic()
        with pytest.raises(SilentError, match=r"nothing received for 0\.\d s"):
            await ends.liveness.watch()
        assert time.monotonic() - began >= BOUND


async def test_bytes_of_a_message_that_takes_its_time_are_signs_of_life(
    unused_tcp_port: int,
) -> None:
    async with connected(unused_tcp_port) as ends, asyncio.timeout(10):
        watch = asyncio.create_task(ends.liveness.watch())
        message = asyncio.create_task(ends.reader.readline())
        for byte in b"a slow line\n":
            assert not watch.done()
            ends.other.write(bytes([byte]))
            await asyncio.sleep(BOUND / 4)
        assert await message == b"a slow line\n"
        with pytest.raises(SilentError):
            await watch


async def test_a_loop_that_was_held_up_reads_what_waits_before_it_ends_the_stream(
    unused_tcp_port: int,
) -> None:
    async with connected(unused_tcp_port) as ends:
        watch = asyncio.create_task(ends.liveness.watch())
        await asyncio.sleep(0)
        ends.other.write(b"here\n")
        await ends.other.drain()
        time.sleep(2 * BOUND)  # noqa: ASYNC251 - what is tested
        await asyncio.sleep(BOUND / 2)
        assert not watch.done()
        watch.cancel()


async def test_a_loop_that_runs_late_gives_the_other_end_longer(unused_tcp_port: int) -> None:
    async with connected(unused_tcp_port) as ends:
        watch = asyncio.create_task(ends.liveness.watch())
        await asyncio.sleep(0)
        time.sleep(2 * BOUND)  # noqa: ASYNC251 - what is tested
        for _ in range(2):  # far longer than the bound, shorter than the bound and twice the delay
            await asyncio.sleep(BOUND / 3)
            assert not watch.done()
        ends.other.write(b"here\n")
        await ends.reader.readline()
        assert not watch.done()
        watch.cancel()


async def test_on_an_idle_machine_a_dead_end_is_found_within_the_bound() -> None:
    assert SilenceBound(BOUND, heartbeat=BOUND / 2).seconds(time.monotonic()) == BOUND


async def test_a_silence_that_ended_gives_the_other_end_longer(unused_tcp_port: int) -> None:
    bound = SilenceBound(BOUND, heartbeat=0.0)
    async with connected(unused_tcp_port) as ends:
        tapped = LivenessMonitor(cast("asyncio.Transport", ends.writer.transport), bound)
        await asyncio.sleep(2 * BOUND)
        ends.other.write(b"here\n")
        await ends.reader.readline()
        assert tapped.last_received_at > time.monotonic() - BOUND
        assert bound.seconds(time.monotonic()) >= 5 * BOUND


async def test_writes_that_hang_do_not_hide_the_silence(unused_tcp_port: int) -> None:
    async with connected(unused_tcp_port) as ends, asyncio.timeout(10):
        ends.other.transport.pause_reading()  # type: ignore[attr-defined]
        ends.writer.write(bytes(64 * 2**20))
        drain = asyncio.create_task(ends.writer.drain())
        with pytest.raises(SilentError):
            await ends.liveness.watch()
        assert not drain.done()
        ends.liveness.abort()
        with contextlib.suppress(ConnectionError):
            await drain


async def test_the_end_of_a_connection_is_detected(unused_tcp_port: int) -> None:
    async with connected(unused_tcp_port) as ends:
        before = ends.liveness.last_received_at
        ends.other.close()
        assert await ends.reader.read() == b""
        assert ends.liveness.last_received_at > before
