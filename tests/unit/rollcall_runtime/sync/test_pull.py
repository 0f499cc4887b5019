"""Engines whose receivers read from their neighbours' memory."""

import pytest

from rollcall_runtime.bench.world import Remote, World, abort, join, settled
from rollcall_runtime.sync.engine import Role
from rollcall_runtime.sync.errors import SyncError

GROUP = "job/default"
MIB = 1 << 20
PEER_ENGINES = ("mooncake", "nixl")


def test_a_dead_source_is_named_and_nothing_keeps_what_was_read(
    world: World, trio: list[Remote]
) -> None:
    if world.engine not in PEER_ENGINES:
        pytest.skip("not an engine of reads")
    sender = world.open(Role.SENDER)
    receivers = trio[1:]
    before = [member.do("counts")["pinned"] for member in receivers]
    manifest = sender.do("snapshot", seed=40, megabytes=64, bucket_bytes=8 * MIB)
    join([sender, *receivers])
    kwargs = {"group": GROUP, "number": 40, "manifest": manifest, "timeout": 10}
    receiving = [member.start("receive", **kwargs) for member in receivers]
    sender.start("publish_and_die", group=GROUP, timeout=10, die_after=4)
    assert sender.dead.wait(5)
    for future in receiving:
        error = future.result(5).error
        assert isinstance(error, SyncError)
        assert error.peer == sender.id
    abort(receivers)
    for member, pinned in zip(receivers, before, strict=True):
        settled(member, "abandoned", 0)
        settled(member, "pinned", pinned, seconds=1)  # and not when memory is next collected
