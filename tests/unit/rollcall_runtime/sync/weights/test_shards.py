"""Which buckets hold the rows that a shard needs, and where these lie when the rest is left out."""

from dataclasses import dataclass

import pytest
import torch

from rollcall_protocol.job_config import DeltaConfig
from rollcall_protocol.wire.weight_manifest import RowRange, WeightManifest, combine_manifests
from rollcall_runtime.sync.digests import bucket_digests
from rollcall_runtime.sync.errors import DigestMismatchError, StagingError
from rollcall_runtime.sync.memory.buffers import GrowingBufferPool, HostBuffer
from rollcall_runtime.sync.weights.delta import decode, encode
from rollcall_runtime.sync.weights.shards import RowShard, Shard, cut, select
from rollcall_runtime.sync.weights.snapshots import Snapshotter, WeightSnapshot
from tests.unit.rollcall_protocol.wire.made_up_digests import made_up
from tests.unit.rollcall_runtime.sync.member import odd_tensors

HALVES = RowShard(0, 2), RowShard(1, 2)


@dataclass(frozen=True, slots=True)
class Named(Shard):
    """The same rows of every tensor that is named."""

    wanted: RowRange | None
    names: tuple[str, ...]
    key: str = "named"

    def rows(self, name: str, shape: tuple[int, ...]) -> RowRange | None:
        return self.wanted if name in self.names else (0, 0)


def snapshot(*tensors: torch.Tensor, bucket_bytes: int = 64) -> WeightSnapshot:
    named = [(f"t{number}", tensor) for number, tensor in enumerate(tensors)]
    return Snapshotter(bucket_bytes=bucket_bytes).take(named, timeout=0).finish()


def taken(whole: WeightSnapshot, shard: Shard) -> tuple[WeightSnapshot, int]:
    """What a receiver has that was given the buckets of its shard, and how many bytes these are."""
    selection = select(whole.manifest, shard)
    bounds = whole.manifest.buckets()
    held = b"".join(bytes(whole.buffer.memory[slice(*bounds[n])]) for n in selection.buckets)
    assert selection.manifest.total_bytes == len(held)
    buffer = HostBuffer(len(held))
    buffer.memory[:] = held
    found = bucket_digests(buffer.memory, selection.manifest.bucket_bytes)
    assert whole.manifest.parts or selection.manifest.digests == found
    return WeightSnapshot(selection.manifest, buffer.hold()), len(held)


def expected(whole: WeightSnapshot, shard: Shard) -> dict[str, torch.Tensor]:
    """The rows, by torch itself."""
    found = {}
    for name, tensor in whole.tensors():
        rows = shard.rows(name, tuple(tensor.shape))
        if rows is None or rows == (0, len(tensor)):
            found[name] = tensor
        elif rows[0] < rows[1]:
            found[name] = tensor[slice(*rows)]
    return found


def same(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> bool:
    return list(found) == list(wanted) and all(
        found[name].dtype == tensor.dtype
        and found[name].shape == tensor.shape
        and found[name].contiguous().reshape(-1).view(torch.uint8).tolist()
        == tensor.contiguous().reshape(-1).view(torch.uint8).tolist()
        for name, tensor in wanted.items()
    )


@pytest.mark.parametrize("shard", [*HALVES, RowShard(2, 3), RowShard(0, 1)], ids=lambda s: s.key)
@pytest.mark.parametrize("bucket_bytes", [64, 1000, 999, 1 << 20])
def test_rows_of_every_dtype_and_shape_survive(shard: RowShard, bucket_bytes: int) -> None:
    taker = Snapshotter(bucket_bytes=bucket_bytes)
    named = [(name, tensor) for name, tensor in odd_tensors(1, 1) if name != "layer.big"]
    big = torch.randint(0, 256, (40, 1000), dtype=torch.uint8)
    whole = taker.take([*named, ("layer.big", big)], timeout=0).finish()
    assert same(dict(taken(whole, shard)[0].tensors()), expected(whole, shard))
    flat = WeightSnapshot(cut(whole.manifest, shard), whole.buffer.hold())
    assert same(dict(flat.tensors()), expected(whole, shard))


def test_a_half_of_the_rows_is_half_of_the_bytes() -> None:
    whole = snapshot(*[torch.rand(32, 64) for _ in range(4)], bucket_bytes=1024)
    for half in HALVES:
        assert taken(whole, half)[1] * 2 == whole.manifest.total_bytes


def test_rows_that_share_a_bucket_with_others_bring_these_along() -> None:
    whole = snapshot(torch.rand(3, 64), bucket_bytes=256)
    assert select(whole.manifest, Named((1, 2), ("t0",))).buckets == (1,)
    whole = snapshot(torch.rand(3, 64), bucket_bytes=512)
    assert select(whole.manifest, Named((1, 2), ("t0",))).buckets == (0,)
    whole = snapshot(torch.rand(3, 64), bucket_bytes=384)
    assert select(whole.manifest, Named((1, 2), ("t0",))).buckets == (0, 1)


def test_a_tensor_without_wanted_rows_is_not_there() -> None:
    whole = snapshot(torch.rand(4, 16), torch.rand(4, 16), bucket_bytes=64)
    kept, nbytes = taken(whole, Named(None, ("t1",)))
    assert [name for name, _ in kept.tensors()] == ["t1"]
    assert nbytes == 256


def test_a_shard_without_rows_takes_no_bucket() -> None:
    selection = select(snapshot(torch.rand(4, 16)).manifest, Named(None, ()))
    assert (selection.buckets, selection.manifest.total_bytes) == ((), 0)
    assert selection.manifest.tensors == ()


def pieces(rows: tuple[int, ...], bucket_bytes: int) -> tuple[torch.Tensor, WeightSnapshot]:
    """A tensor that several senders hold pieces of, besides others of theirs."""
    tensor = torch.arange(sum(rows) * 10, dtype=torch.float32).reshape(sum(rows), 10)
    parts = [
        Snapshotter(bucket_bytes=bucket_bytes)
        .take([("w", piece), (f"own{number}", torch.rand(5))], timeout=0)
        .finish()
        for number, piece in enumerate(tensor.tensor_split([rows[0], rows[0] + rows[1]]))
    ]
    manifest = combine_manifests([part.manifest for part in parts])
    buffer = HostBuffer(manifest.total_bytes)
    for part, (start, end) in zip(parts, manifest.bounds(), strict=True):
        buffer.memory[start:end] = part.buffer.memory
    return tensor, WeightSnapshot(manifest, buffer.hold())


@pytest.mark.parametrize("bucket_bytes", [64, 100, 1000])
@pytest.mark.parametrize("wanted", [(0, 3), (3, 5), (2, 9), (8, 9), (0, 9)])
def test_rows_that_several_senders_hold_are_put_together(
    wanted: RowRange, bucket_bytes: int
) -> None:
    tensor, whole = pieces((3, 4, 2), bucket_bytes)
    kept, _ = taken(whole, Named(wanted, ("w",)))
    ((name, found),) = kept.tensors()
    assert name == "w"
    assert torch.equal(found, tensor[slice(*wanted)])


def test_buckets_that_are_left_out_keep_the_parts_apart() -> None:
    whole = WeightManifest((), 300, 64, made_up(1, 2, 3, 4, 5, 6), (100, 0, 200))
    kept = whole.only([1, 2, 5])
    assert kept == WeightManifest((), 36 + 64 + 8, 64, made_up(2, 3, 6), (36, 0, 72))


@pytest.mark.parametrize("rows", [(0, 5), (-1, 2), (3, 2)])
def test_rows_that_there_are_not_are_an_error_of_this_process(rows: RowRange) -> None:
    with pytest.raises(StagingError, match=r"wants rows .* of t0, which has 4") as caught:
        select(snapshot(torch.rand(4, 2)).manifest, Named(rows, ("t0",)))
    assert caught.value.own_fault


def test_a_scalar_has_no_rows_to_choose() -> None:
    with pytest.raises(StagingError, match="of t0, which has 0"):
        select(snapshot(torch.tensor(1.0)).manifest, Named((0, 1), ("t0",)))


def test_a_rank_beyond_the_last_is_refused() -> None:
    with pytest.raises(ValueError, match="rank 2"):
        RowShard(2, 2)


@pytest.mark.parametrize("shard", HALVES, ids=lambda shard: shard.key)
def test_a_delta_is_decoded_for_the_buckets_that_are_there(shard: RowShard) -> None:
    old = snapshot(*[torch.rand(32, 64) for _ in range(4)], bucket_bytes=1024)
    tensors = [tensor.clone() for _, tensor in old.tensors()]
    for number, tensor in enumerate(tensors):
        tensor[5 * number, 3] = number
    new = snapshot(*tensors, bucket_bytes=1024)
    encoded = encode(
        old.buffer.memory,
        new.buffer.memory,
        new.manifest,
        config=DeltaConfig(),
        pool=GrowingBufferPool(limit=1),
    )
    assert encoded is not None
    base, _ = taken(old, shard)
    selection = select(new.manifest, shard)
    target = HostBuffer(selection.manifest.total_bytes)

    def make() -> None:
        decode(
            encoded.buffer.memory,
            encoded.manifest,
            new.manifest,
            target.memory,
            base=base.buffer.memory,
            config=DeltaConfig(),
            only=selection.buckets,
        )

    make()
    found = WeightSnapshot(selection.manifest, target.hold())
    assert same(dict(found.tensors()), expected(new, shard))
    base.buffer.memory[1024] ^= 1
    with pytest.raises(DigestMismatchError, match=rf"buckets \[{selection.buckets[1]}\]"):
        make()
