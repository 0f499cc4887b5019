"""A newcomer fetches a whole version from another member, over real sockets."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Callable

import pytest
import torch
from aiohttp import ClientSession, web

from rollcall_protocol.pod_contract import TICKET_HEADER, WEIGHTS_ROUTE
from rollcall_protocol.wire.addresses import host_port
from rollcall_protocol.wire.ids import Version
from rollcall_protocol.wire.weight_manifest import WeightManifest
from rollcall_runtime.sync.errors import CatchUpError, ExhaustedError
from rollcall_runtime.sync.weights.catch_up import (
    FetchTimeouts,
    fetch,
    parse_version,
    weights_handler,
)
from rollcall_runtime.sync.weights.shards import Shard
from rollcall_runtime.sync.weights.snapshots import Snapshotter, WeightSnapshot
from rollcall_runtime.sync.weights.staging import StagingArea
from rollcall_runtime.sync.weights.tickets import TicketKeys, sign_ticket
from rollcall_runtime.worker.auth import RouteHandler
from tests.unit.rollcall_runtime.sync.member import digests, odd_tensors, version

KEY = "ab" * 32
LIMITS = FetchTimeouts(connect=1.0, stall=0.3, total=5.0)
SEVEN = version(7)
TICKET = sign_ticket(KEY, str(SEVEN))
EMPTY = WeightManifest((), 0, 1, ())


def snapshot(seed: int = 7, megabytes: int = 3, *, cheap: bool = False) -> WeightSnapshot:
    taker = Snapshotter(bucket_bytes=1 << 20, cheap=cheap)
    return taker.take(odd_tensors(seed, megabytes), timeout=0).finish()


def holder(
    held: WeightSnapshot, held_version: Version = SEVEN
) -> Callable[[Version], WeightSnapshot | None]:
    return lambda asked: held if asked == held_version else None


def guarded(handler: RouteHandler) -> RouteHandler:
    """As agent and coordinator mount it."""
    keys = TicketKeys()
    keys.accept("coordinator", KEY)
    return keys.guard(handler, lambda _: None)


@contextlib.asynccontextmanager
async def donor(
    held: Callable[[Version], WeightSnapshot | None],
    *,
    transfers: int = 4,
    stall: float = 10.0,
    ip: str = "127.0.3.1",
) -> AsyncIterator[str]:
    """A member that serves weights; its host:port."""
    app = web.Application()
    handler = guarded(weights_handler(held, transfers=transfers, stall=stall))
    app.add_routes([web.get(WEIGHTS_ROUTE, handler)])
    async with serving(app, ip=ip) as address:
        yield address


@contextlib.asynccontextmanager
async def serving(app: web.Application, *, ip: str = "127.0.3.1") -> AsyncIterator[str]:
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, ip, 0)
    await site.start()
    port = runner.addresses[0][1]
    try:
        yield host_port(ip, port)
    finally:
        await runner.cleanup()


def dead_donor() -> str:
    with socket.socket() as unused:
        unused.bind(("127.0.3.1", 0))
        host, port = unused.getsockname()
    return f"{host}:{port}"


@contextlib.asynccontextmanager
async def silent_donor() -> AsyncIterator[str]:
    """It takes connections and never answers, as a stopped process does."""
    with socket.socket() as listener:
        listener.bind(("127.0.3.1", 0))
        listener.listen()
        host, port = listener.getsockname()
        yield f"{host}:{port}"


async def fetch_seven(
    manifest: WeightManifest,
    *donors: str,
    stage: StagingArea | None = None,
    ticket: str = TICKET,
    limits: FetchTimeouts | None = None,
    shard: Shard | None = None,
) -> tuple[str, ...]:
    """Fetch version 7, which `manifest` describes, with `ticket` for each address of a donor."""
    return await fetch(
        version=SEVEN,
        manifest=manifest,
        donors=donors,
        tickets=["+".join([ticket] * len(donor.split("+"))) for donor in donors],
        stage=stage or StagingArea(),
        limits=limits,
        shard=shard,
    )


def committed(stage: StagingArea, number: int = 7) -> dict[str, str]:
    with stage.committing(version(number)) as weights:
        return digests(weights)


@pytest.mark.parametrize("ip", ["127.0.3.1", "::1"])
async def test_a_newcomer_gets_every_byte(ip: str) -> None:
    held, stage = snapshot(), StagingArea()
    async with donor(holder(held), ip=ip) as address:
        await fetch_seven(held.manifest, address, stage=stage)
    assert stage.served is None
    assert committed(stage) == digests(held)
    assert stage.served == SEVEN


async def test_a_donor_logs_how_many_bytes_it_gave(caplog: pytest.LogCaptureFixture) -> None:
    held = snapshot()
    with caplog.at_level(logging.INFO):
        async with donor(holder(held)) as address:
            await fetch_seven(held.manifest, address)
    (line,) = [text for text in caplog.messages if text.startswith("gave ")]
    assert line.startswith(f"gave {held.manifest.total_bytes} bytes of weights to 127.0.")


async def test_the_next_donor_is_tried_when_one_is_dead_or_silent() -> None:
    held, stage = snapshot(), StagingArea()
    async with donor(holder(held)) as address, silent_donor() as silent:
        donors = [dead_donor(), silent, address]
        await fetch_seven(held.manifest, *donors, stage=stage, limits=LIMITS)
    assert committed(stage) == digests(held)


async def test_a_donor_that_dies_half_way_is_replaced() -> None:
    held, stage = snapshot(megabytes=64), StagingArea()

    async def dying(request: web.Request) -> web.StreamResponse:
        handler = guarded(weights_handler(holder(held)))
        assert request.transport is not None
        asyncio.get_running_loop().call_later(0.01, request.transport.abort)
        return await handler(request)

    app = web.Application()
    app.add_routes([web.get(WEIGHTS_ROUTE, dying)])
    asked: list[Version] = []

    def second(version_: Version) -> WeightSnapshot | None:
        asked.append(version_)
        return held

    async with serving(app) as half, donor(second) as address:
        await fetch_seven(held.manifest, half, address, stage=stage)
    assert asked == [SEVEN]
    assert committed(stage) == digests(held)


def lying(held: WeightSnapshot, *, cheap: bool = False) -> WeightSnapshot:
    """The same weights but for one byte, and digests or checksums that are right for them."""
    tensors = [(name, tensor.clone()) for name, tensor in held.tensors()]
    tensors[0][1].view(torch.uint8).view(-1)[0] ^= 1
    taker = Snapshotter(bucket_bytes=held.manifest.bucket_bytes, cheap=cheap)
    return taker.take(tensors, timeout=0).finish()


async def test_a_donor_of_other_weights_than_the_trainers_is_passed_over_and_named() -> None:
    held, stage = snapshot(), StagingArea()
    async with donor(holder(lying(held))) as liar, donor(holder(held)) as honest:
        wrong = await fetch_seven(held.manifest, liar, honest, stage=stage)
    assert wrong == (liar,)
    assert committed(stage) == digests(held)


async def test_a_donor_may_have_the_checksums_that_came_with_the_version() -> None:
    held, stage = snapshot(), StagingArea()
    async with donor(holder(snapshot(cheap=True))) as address:
        await fetch_seven(held.manifest, address, stage=stage)
    assert committed(stage) == digests(held)


async def test_a_donor_with_checksums_of_other_weights_is_passed_over_and_named() -> None:
    held, wrong = snapshot(), lying(snapshot(cheap=True), cheap=True)
    async with donor(holder(wrong)) as liar:
        with pytest.raises(CatchUpError, match="wrong digest in bucket 0") as caught:
            await fetch_seven(held.manifest, liar)
    assert caught.value.wrong_donors == (liar,)


async def test_checksums_are_not_what_a_donor_is_believed_by() -> None:
    held = snapshot(cheap=True)
    async with donor(holder(held)) as address:
        with pytest.raises(CatchUpError, match="no digests by which to check"):
            await fetch_seven(held.manifest, address)


async def test_without_an_honest_donor_nothing_is_staged_and_the_liars_are_named() -> None:
    held, stage = snapshot(), StagingArea()
    async with donor(holder(lying(held))) as liar:
        with pytest.raises(CatchUpError, match="other weights than the trainer made") as caught:
            await fetch_seven(held.manifest, liar, stage=stage)
    assert caught.value.wrong_donors == (liar,)
    assert stage.state.in_use == 0


async def test_no_more_of_a_manifest_is_read_than_the_trainers_can_be_long() -> None:
    held, stage = snapshot(), StagingArea()

    async def endless(_: web.Request) -> web.Response:
        return web.Response(body=(2**40).to_bytes(8, "big"))

    app = web.Application()
    app.add_routes([web.get(WEIGHTS_ROUTE, endless)])
    async with serving(app) as liar:
        with pytest.raises(CatchUpError, match=f"announces a manifest of {2**40} bytes"):
            await fetch_seven(held.manifest, liar, stage=stage)


async def test_every_donors_reason_is_reported() -> None:
    stage = StagingArea()
    async with donor(holder(snapshot(), version(8))) as address, silent_donor() as silent:
        donors = [dead_donor(), silent, address]
        with pytest.raises(CatchUpError) as caught:
            await fetch_seven(EMPTY, *donors, stage=stage, limits=LIMITS)
    message = str(caught.value)
    assert all(name in message for name in donors)
    assert "HTTP 404: does not hold 7@1.1" in message
    assert stage.state.in_use == 0


async def test_without_donors_there_is_nothing_to_fetch() -> None:
    with pytest.raises(CatchUpError, match="no donor was named"):
        await fetch_seven(EMPTY)


OTHERS = {
    "none": "",
    "a guess": "guess",
    "no text": "\u00e9",
    "another version's": sign_ticket(KEY, str(version(8))),
    "another donor's": sign_ticket("cd" * 32, str(SEVEN)),
}


@pytest.mark.parametrize("ticket", OTHERS.values(), ids=OTHERS)
async def test_without_the_ticket_for_this_donor_and_version_there_is_nothing(ticket: str) -> None:
    async with donor(holder(snapshot())) as address:
        with pytest.raises(CatchUpError, match="HTTP 401"):
            await fetch_seven(EMPTY, address, ticket=ticket)


@pytest.mark.parametrize("query", ["", "?version=", "?version=7", "?version=7@1.x"])
async def test_a_version_that_cannot_be_read_is_refused(query: str) -> None:
    asked = query.partition("=")[2]
    headers = {TICKET_HEADER: sign_ticket(KEY, asked)}
    async with donor(holder(snapshot())) as address, ClientSession(headers=headers) as client:
        answer = await client.get(f"http://{address}{WEIGHTS_ROUTE}{query}")
        assert answer.status == 400


async def test_corrupt_bytes_are_noticed_and_not_staged() -> None:
    held, stage = snapshot(), StagingArea()
    held.buffer.memory[2_000_000] ^= 1
    async with donor(holder(held)) as address:
        with pytest.raises(CatchUpError, match="wrong digest in bucket 1"):
            await fetch_seven(held.manifest, address, stage=stage)
    assert stage.state.in_use == 0


async def test_a_commit_during_the_transfer_does_not_change_what_is_sent() -> None:
    giver, taker = StagingArea(buffers=3, spare_bytes=0), StagingArea()
    first = snapshot(megabytes=16)
    _serve(giver, first, 7)
    async with donor(giver.held) as address:
        fetching = asyncio.create_task(fetch_seven(first.manifest, address, stage=taker))
        while taker.state.in_use == 0:
            await asyncio.sleep(0)
        for number in (8, 9, 10):
            _serve(giver, snapshot(number, megabytes=16), number)
        assert not fetching.done()
        await fetching
    assert committed(taker) == digests(first)
    assert giver.state.in_use == 1


async def test_a_snapshot_that_its_owner_releases_stays_whole_until_it_is_sent() -> None:
    taker = Snapshotter(bucket_bytes=1 << 20, buffers=1, spare_bytes=0)
    owned, stage = taker.take(odd_tensors(7, 16), timeout=0).finish(), StagingArea()
    expected = digests(owned)
    async with donor(holder(owned)) as address:
        fetching = asyncio.create_task(fetch_seven(owned.manifest, address, stage=stage))
        while stage.state.in_use == 0:
            await asyncio.sleep(0)
        owned.release()
        with pytest.raises(ExhaustedError):
            taker.take(odd_tensors(8, 16), timeout=0)
        await fetching
        assert committed(stage) == expected
        await asyncio.sleep(0)
        taker.take(odd_tensors(8, 16), timeout=0)


async def test_a_donor_bounds_its_transfers() -> None:
    async with donor(holder(snapshot()), transfers=0) as address:
        with pytest.raises(CatchUpError, match="HTTP 503"):
            await fetch_seven(EMPTY, address)


async def test_a_reader_that_stalls_does_not_keep_the_buffer() -> None:
    giver = StagingArea()
    _serve(giver, snapshot(megabytes=16), 7)
    headers = {TICKET_HEADER: TICKET}
    async with donor(giver.held, stall=0.1) as address, ClientSession(headers=headers) as client:
        url = f"http://{address}{WEIGHTS_ROUTE}"
        async with client.get(url, params={"version": "7@1.1"}):
            _serve(giver, snapshot(8, megabytes=16), 8)
            assert giver.state.in_use == 2
            async with asyncio.timeout(2):
                while giver.state.in_use > 1:
                    await asyncio.sleep(0.01)


def test_versions_are_read_as_they_are_written() -> None:
    assert parse_version(str(SEVEN)) == SEVEN


def _serve(stage: StagingArea, source: WeightSnapshot, number: int) -> None:
    with stage.staging(version(number), source.manifest, timeout=0) as buffer:
        buffer.memory[:] = source.buffer.memory
    with stage.committing(version(number)):
        pass
