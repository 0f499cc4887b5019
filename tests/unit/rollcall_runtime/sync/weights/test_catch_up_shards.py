"""A newcomer that needs a part fetches that part, from any member that holds it."""

import contextlib
from collections.abc import AsyncIterator

import pytest
import torch
from aiohttp import ClientSession, web

from rollcall_protocol.pod_contract import TICKET_HEADER, WEIGHTS_ROUTE
from rollcall_protocol.wire.weight_manifest import combine_manifests
from rollcall_runtime.sync.errors import CatchUpError
from rollcall_runtime.sync.weights.catch_up import weights_handler
from rollcall_runtime.sync.weights.shards import RowShard, cut
from rollcall_runtime.sync.weights.snapshots import Snapshotter, WeightSnapshot
from rollcall_runtime.sync.weights.staging import StagingArea
from rollcall_runtime.worker.auth import RouteHandler
from tests.unit.rollcall_runtime.sync.member import digests
from tests.unit.rollcall_runtime.sync.weights.test_catch_up import (
    SEVEN,
    TICKET,
    committed,
    donor,
    fetch_seven,
    guarded,
    holder,
    serving,
    snapshot,
)

HALF = RowShard(0, 2)


class Listening:
    """How many bytes a donor sent, by its Content-Length."""

    def __init__(self) -> None:
        self.sent = 0
        self.requests = 0

    def around(self, handler: RouteHandler) -> RouteHandler:
        async def handle(request: web.Request) -> web.StreamResponse:
            answer = await handler(request)
            self.requests += 1
            self.sent += answer.content_length or 0
            return answer

        return handle


@contextlib.asynccontextmanager
async def counted(handler: RouteHandler) -> AsyncIterator[tuple[str, Listening]]:
    listening, app = Listening(), web.Application()
    app.add_routes([web.get(WEIGHTS_ROUTE, listening.around(guarded(handler)))])
    async with serving(app) as address:
        yield address, listening


def rows(held: WeightSnapshot, shard: RowShard) -> dict[str, str]:
    return digests(WeightSnapshot(cut(held.manifest, shard), held.buffer.hold()))


async def test_a_newcomer_that_needs_a_part_fetches_that_part() -> None:
    held, stage = snapshot(megabytes=16), StagingArea()
    async with counted(weights_handler(holder(held))) as (address, listening):
        await fetch_seven(held.manifest, address, stage=stage, shard=HALF)
    assert listening.requests == 2, "the manifest, and the buckets"
    assert 8 << 20 <= listening.sent < 10 << 20, "the half, and the bucket of what is small"
    assert committed(stage) == rows(held, HALF)


@pytest.mark.parametrize("cheap", [False, True])
async def test_a_part_of_what_several_senders_hold_is_fetched_from_each(cheap: bool) -> None:
    weight = torch.rand(64, 256)

    def taken(*, cheap: bool = False) -> list[WeightSnapshot]:
        taker = Snapshotter(bucket_bytes=1 << 10, cheap=cheap)
        halves = weight[:32], weight[32:]
        return [taker.take([("w", rows)], timeout=0).finish() for rows in halves]

    one, two = taken(cheap=cheap)
    stage, shard = StagingArea(), RowShard(1, 4)
    async with (
        counted(weights_handler(holder(one))) as (first, at_first),
        counted(weights_handler(holder(two))) as (second, at_second),
    ):
        await fetch_seven(
            combine_manifests([part.manifest for part in taken()]),
            f"{first}+{second}",
            stage=stage,
            shard=shard,
        )
    assert at_first.sent > 16 << 10
    assert at_second.sent < 8 << 10, "manifests alone"
    with stage.committing(SEVEN) as weights:
        ((name, found),) = weights.tensors()
    assert name == "w"
    assert torch.equal(found, weight[16:32])


async def test_more_ranges_than_a_request_can_name_are_requested_in_turn() -> None:
    named = [(f"t{number}", torch.rand(2, 64)) for number in range(1000)]
    held = Snapshotter(bucket_bytes=256).take(named, timeout=0).finish()
    stage = StagingArea()
    async with counted(weights_handler(holder(held))) as (address, listening):
        await fetch_seven(held.manifest, address, stage=stage, shard=HALF)
    assert listening.requests == 6
    assert committed(stage) == rows(held, HALF)


async def test_a_member_that_holds_a_part_gives_it_only_to_members_that_need_the_same() -> None:
    held, stage = snapshot(megabytes=16), StagingArea()
    async with donor(holder(held)) as address:
        await fetch_seven(held.manifest, address, stage=stage, shard=HALF)
    committed(stage)
    part = weights_handler(stage.held, shard=HALF.key)
    async with counted(part) as (address, listening):
        for shard in (None, RowShard(1, 2)):
            with pytest.raises(CatchUpError, match="holds shard 0/2 only"):
                await fetch_seven(held.manifest, address, shard=shard)
        other = StagingArea()
        await fetch_seven(held.manifest, address, stage=other, shard=HALF)
    assert committed(other) == rows(held, HALF)
    assert listening.sent < 10 << 20


async def test_corrupt_bytes_of_a_part_are_named_as_the_whole_names_them() -> None:
    held, stage = snapshot(megabytes=16), StagingArea()
    last = RowShard(1, 2)
    held.buffer.memory[12 << 20] ^= 1
    async with donor(holder(held)) as address:
        with pytest.raises(CatchUpError, match="wrong digest in bucket 12"):
            await fetch_seven(held.manifest, address, stage=stage, shard=last)
        await fetch_seven(held.manifest, address, stage=stage, shard=HALF)
    assert committed(stage) == rows(held, HALF)


@pytest.mark.parametrize("buckets", ["4", "0-4", "2-1", "x", "-1", "0-"])
async def test_buckets_that_there_are_not_are_refused(buckets: str) -> None:
    headers = {TICKET_HEADER: TICKET}
    async with donor(holder(snapshot())) as address, ClientSession(headers=headers) as client:
        query = {"version": str(SEVEN), "buckets": buckets}
        answer = await client.get(f"http://{address}{WEIGHTS_ROUTE}", params=query)
        assert answer.status == 400
