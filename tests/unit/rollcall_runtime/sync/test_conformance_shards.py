"""Receivers that need a part of the weights, between real processes, beside one that needs all.

An engine whose receivers read brings the wanted buckets and no others; the rest bring everything.
"""

from concurrent.futures import Future
from dataclasses import replace

import pytest

from rollcall_protocol.wire.weight_manifest import WeightManifest
from rollcall_runtime.sync.engine import Role
from rollcall_runtime.sync.errors import DigestMismatchError, SyncError
from rollcall_runtime.sync.weights.shards import RowShard, Shard, select
from tests.unit.rollcall_runtime.sync.engine_cases import Case
from tests.unit.rollcall_runtime.sync.member import MemberReply, digest, odd_tensors
from tests.unit.rollcall_runtime.sync.member_processes import (
    MemberProcess,
    MemberProcesses,
    abort,
    done,
    join,
    publish,
    settled,
)

GROUP = "job/default"
MIB = 1 << 20
SIZE = 16  # MiB, of which all but some hundred bytes are in one tensor of as many rows
HALVES = RowShard(0, 2), RowShard(1, 2)


def member(
    processes: MemberProcesses, shard: Shard | None = None, role: Role = Role.RECEIVER
) -> MemberProcess:
    made = processes.member()
    made.seat = made.do(
        "open",
        engine=processes.engine,
        address=made.address,
        role=role,
        config=processes.config,
        device=processes.device,
        shard=shard,
    )
    return made


@pytest.fixture
def selective(case: Case) -> None:
    if not case.selective:
        pytest.skip("every receiver gets all buckets")


@pytest.fixture(scope="module")
def halves(processes: MemberProcesses) -> list[MemberProcess]:
    return [member(processes, half) for half in HALVES]


def rows(case: Case, shard: Shard, seed: int, megabytes: int = SIZE) -> dict[str, str]:
    """Digests of what a receiver with this shard must have, by torch alone."""
    found = {}
    for name, tensor in odd_tensors(seed, megabytes):
        cut = shard.rows(name, tuple(tensor.shape)) if case.selective else None
        if cut is None or len(tensor) == 0:
            found[name] = digest(tensor)
        elif cut[0] < cut[1]:
            found[name] = digest(tensor[cut[0] : cut[1]])
    return found


def receiving(
    members: list[MemberProcess], manifest: WeightManifest, number: int
) -> list[Future[MemberReply]]:
    kwargs = {"group": GROUP, "number": number, "manifest": manifest, "timeout": 5}
    return [receiver.start("receive", **kwargs) for receiver in members]


@pytest.mark.parametrize(
    ("megabytes", "bucket_bytes"), [(SIZE, MIB), (SIZE, 100_000), (96, 8 * MIB)]
)
def test_each_receiver_takes_only_its_part(
    case: Case,
    processes: MemberProcesses,
    trio: list[MemberProcess],
    halves: list[MemberProcess],
    megabytes: int,
    bucket_bytes: int,
) -> None:
    sender, whole, _ = trio
    everyone = [sender, whole, *halves]
    manifest = sender.do("snapshot", seed=50, megabytes=megabytes, bucket_bytes=bucket_bytes)
    before = [one.do("reads") for one in halves]
    join(everyone)
    publish(everyone, number=50, manifest=manifest)
    for half, shard, reads in zip(halves, HALVES, before, strict=True):
        assert half.do("served_digests") == rows(case, shard, 50, megabytes)
        if case.selective:
            part = select(manifest, shard).manifest.total_bytes
            assert part < manifest.total_bytes / 2 + 3 * bucket_bytes
            counted, seen = (now - then for now, then in zip(half.do("reads"), reads, strict=True))
            assert counted == part
            assert part <= seen < part + 100_000, "what describes the weights is read too"
            assert half.do("held_bytes") == part, "no memory for the rest"
    assert whole.do("served_digests") == sender.do("digests")
    abort(everyone)


@pytest.mark.usefixtures("selective")
def test_those_that_want_the_same_pass_it_on(
    case: Case, processes: MemberProcesses, trio: list[MemberProcess]
) -> None:
    sender, *wholes = trio
    shards = [HALVES[0], HALVES[1]] * 4  # two lines of four: chains
    parts = [member(processes, shard) for shard in shards]
    everyone = [sender, *wholes, *parts]
    join(everyone)
    for number in (51, 52):  # the next publication overwrites what a neighbour may have read
        manifest = sender.do("snapshot", seed=number, megabytes=SIZE, bucket_bytes=MIB)
        publish(everyone, number=number, manifest=manifest)
        for one, shard in zip(parts, shards, strict=True):
            assert one.do("served_digests") == rows(case, shard, number)
        for one in wholes:
            assert one.do("served_digests") == sender.do("digests")
    abort(everyone)
    for one in parts:
        one.close()


@pytest.mark.usefixtures("selective")
def test_a_wrong_digest_matters_to_receivers_that_take_the_bucket(
    case: Case, processes: MemberProcesses, trio: list[MemberProcess], halves: list[MemberProcess]
) -> None:
    sender, first, second = trio[0], *halves
    everyone = [sender, *halves]
    manifest = sender.do("snapshot", seed=53, megabytes=SIZE, bucket_bytes=MIB)
    join(everyone)
    publish(everyone, number=53, manifest=manifest)
    served = first.do("served")
    sums = list(manifest.digests)
    sums[3] = sums[4]  # of the first half
    futures = receiving(halves, replace(manifest, digests=tuple(sums)), 54)
    sender.do("publish", group=GROUP, timeout=5)
    with pytest.raises(DigestMismatchError, match=r"buckets \[3\] of"):
        done(futures[0])
    done(futures[1])
    second.do("commit", number=54)
    assert second.do("served_digests") == rows(case, HALVES[1], 53)
    assert first.do("served") == served
    abort(everyone)


@pytest.mark.usefixtures("selective")
def test_a_receiver_that_needs_nothing_is_part_of_the_session(
    case: Case, processes: MemberProcesses, trio: list[MemberProcess]
) -> None:
    sender, whole, _ = trio
    manifest = sender.do("snapshot", seed=55, megabytes=0, bucket_bytes=MIB)
    nothing = member(processes, RowShard(0, 100))
    everyone = [sender, whole, nothing]
    join(everyone)
    publish(everyone, number=55, manifest=manifest)
    assert nothing.do("served_digests") == rows(case, RowShard(0, 100), 55, megabytes=0)
    abort(everyone)
    nothing.close()


@pytest.mark.usefixtures("selective")
@pytest.mark.parametrize("die_after", [1, 4])
def test_a_part_is_old_or_new_but_never_both(
    case: Case,
    processes: MemberProcesses,
    trio: list[MemberProcess],
    halves: list[MemberProcess],
    die_after: int,
) -> None:
    kept, number = trio[0], 56 + 2 * die_after
    everyone = [kept, *halves]
    manifest = kept.do("snapshot", seed=number, megabytes=SIZE, bucket_bytes=MIB)
    join(everyone)
    publish(everyone, number=number, manifest=manifest)
    abort(everyone)
    sender = member(processes, role=Role.SENDER)
    manifest = sender.do("snapshot", seed=99, megabytes=64, bucket_bytes=MIB)
    join([sender, *halves])
    futures = receiving(halves, manifest, number + 1)
    sender.start("publish_and_die", group=GROUP, timeout=5, die_after=die_after)
    assert sender.dead.wait(5)
    abort(halves)
    for future in futures:
        assert isinstance(future.result(5).error, SyncError)
    for half, shard in zip(halves, HALVES, strict=True):
        assert half.do("served_digests") == rows(case, shard, number)
        settled(half, "abandoned", 0)
        settled(half, "in_use", 1)
    join(everyone)
    manifest = kept.do("snapshot", seed=99, megabytes=SIZE, bucket_bytes=MIB)
    publish(everyone, number=number + 1, manifest=manifest)
    for half, shard in zip(halves, HALVES, strict=True):
        assert half.do("served_digests") == rows(case, shard, 99)
    abort(everyone)


@pytest.mark.usefixtures("selective")
def test_a_part_that_dies_leaves_the_others_free(
    case: Case, processes: MemberProcesses, trio: list[MemberProcess], halves: list[MemberProcess]
) -> None:
    sender, whole, _ = trio
    victim = member(processes, HALVES[0])
    everyone = [sender, whole, halves[0], victim]
    manifest = sender.do("snapshot", seed=70, megabytes=64, bucket_bytes=MIB)
    join(everyone)
    kwargs = {"group": GROUP, "number": 70, "manifest": manifest, "timeout": 5}
    futures = receiving([whole, halves[0]], manifest, 70)
    victim.start("receive_and_die", die_after=4, **kwargs)
    futures.append(sender.start("publish", group=GROUP, timeout=5))
    assert victim.dead.wait(5)
    abort(everyone[:-1])
    for future in futures:
        assert isinstance(future.result(5).error, (SyncError, type(None)))
    join(everyone[:-1])
    publish(everyone[:-1], number=70, manifest=manifest)
    assert halves[0].do("served_digests") == rows(case, HALVES[0], 70, megabytes=64)
    abort(everyone[:-1])
