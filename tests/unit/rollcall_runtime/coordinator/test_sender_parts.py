"""Parts of a snapshot that the trainer's other ranks have ready."""

import asyncio

import pytest

from rollcall_protocol.wire.ids import Lineage, MemberId, Version
from rollcall_protocol.wire.messages import SnapshotPartReady
from rollcall_protocol.wire.weight_manifest import WeightManifest
from rollcall_runtime.coordinator.sender_parts import SenderParts
from rollcall_runtime.sync.errors import SyncError
from tests.unit.rollcall_protocol.wire.made_up_digests import made_up

MIB = 1 << 20
VERSION = Version(Lineage(1, 1), 1)
OWN = WeightManifest((), 200, MIB, made_up(5))
SECOND = MemberId("second", "1")


def part(digest: int, nbytes: int = 300) -> WeightManifest:
    return WeightManifest((), nbytes, MIB, made_up(digest))


def two_ranks(*, patience: float | None = None) -> SenderParts:
    """Of which the second has its stream open."""
    made = SenderParts(2, lambda *_: None, patience=patience)
    made.connected(SECOND, 1)
    return made


async def test_parts_of_a_publication_that_failed_are_not_those_of_the_next() -> None:
    parts = two_ranks()
    parts.part_ready(SECOND, SnapshotPartReady(parts.awaited, part(7)))
    number = parts.skip()
    waiting = asyncio.create_task(parts.wait_for_all(VERSION, OWN))
    await asyncio.sleep(0)
    assert not waiting.done()
    parts.part_ready(SECOND, SnapshotPartReady(number - 1, part(7)))  # it came late
    parts.part_ready(SECOND, SnapshotPartReady(number, part(9)))
    whole, _ = await waiting
    assert whole.part(1).digests == part(9).digests


async def test_a_rank_that_has_no_part_is_named_in_time() -> None:
    parts = two_ranks(patience=0.05)
    with pytest.raises(SyncError, match=r"ranks \[1\] have not said in 0.05 s"):
        await parts.wait_for_all(VERSION, OWN)


async def test_a_rank_may_send_nothing() -> None:
    parts = two_ranks()
    parts.part_ready(SECOND, SnapshotPartReady(parts.awaited, WeightManifest((), 0, MIB, ())))
    whole, _ = await parts.wait_for_all(VERSION, OWN)
    assert whole.total_bytes == OWN.total_bytes
