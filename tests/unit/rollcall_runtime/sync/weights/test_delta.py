"""Deltas: what they make of a base, how long they are, and what is refused."""

from typing import Any

import numpy as np
import pytest

from rollcall_protocol.job_config import DeltaConfig
from rollcall_protocol.wire.weight_manifest import WeightManifest, combine_manifests
from rollcall_runtime.sync.digests import bucket_digests
from rollcall_runtime.sync.errors import DigestMismatchError, ExhaustedError
from rollcall_runtime.sync.memory.buffers import GrowingBufferPool, HostBuffer
from rollcall_runtime.sync.weights.delta import EncodedDelta, decode, encode

SIZE, BUCKET = 1_000_003, 300_000
CONFIG = DeltaConfig(block_bytes=4_096)


def weights(seed: int = 1) -> HostBuffer:
    buffer = HostBuffer(SIZE)
    buffer.memory[:] = np.random.default_rng(seed).bytes(SIZE)
    return buffer


def changed(base: HostBuffer, positions: Any) -> HostBuffer:
    buffer = HostBuffer(SIZE)
    buffer.memory[:] = base.memory
    flat = np.frombuffer(buffer.memory, np.uint8)
    flat[positions] += np.random.default_rng(4).integers(1, 256, len(positions), dtype=np.uint8)
    return buffer


def described(buffer: HostBuffer) -> WeightManifest:
    return WeightManifest((), SIZE, BUCKET, bucket_digests(buffer.memory, BUCKET))


def delta(base: HostBuffer, new: HostBuffer, config: DeltaConfig = CONFIG) -> EncodedDelta | None:
    return encode(
        base.memory, new.memory, described(new), config=config, pool=GrowingBufferPool(limit=1)
    )


def apply(made: EncodedDelta, *, base: HostBuffer | None, to: HostBuffer, new: HostBuffer) -> None:
    decode(
        made.buffer.memory,
        made.manifest,
        described(new),
        to.memory,
        base=base.memory if base else None,
        config=CONFIG,
    )


@pytest.mark.parametrize(
    "positions",
    [
        np.arange(0),
        np.array([0]),
        np.array([SIZE - 1]),
        np.array([0, 65_535, 65_536, 131_073, 299_999, 300_000, 900_000]),
        np.arange(200_000, 260_000),
        np.random.default_rng(2).integers(0, SIZE, SIZE // 50),
    ],
    ids=["nothing", "first", "last", "far apart", "a run", "random"],
)
def test_a_base_and_its_delta_make_the_new_weights(positions: Any) -> None:
    base = weights()
    new, target = changed(base, positions), HostBuffer(SIZE)
    made = delta(base, new)
    assert made is not None
    assert made.manifest.total_bytes == made.buffer.nbytes
    assert made.manifest.digests == bucket_digests(made.buffer.memory, BUCKET)
    apply(made, base=base, to=target, new=new)
    assert target.memory == new.memory
    assert base.memory == weights().memory, "the base is served meanwhile"
    apply(made, base=None, to=base, new=new)
    assert base.memory == new.memory, "in place"


def test_parts_of_several_senders_make_the_new_weights() -> None:
    base = weights()
    new, target = changed(base, np.arange(0, SIZE, 99)), HostBuffer(SIZE)
    bounds = ((0, 400_001), (400_001, 400_001), (400_001, SIZE))
    manifests, made = [], []
    for start, end in bounds:
        old, part = base.memory[start:end], new.memory[start:end]
        manifests.append(WeightManifest((), end - start, BUCKET, bucket_digests(part, BUCKET)))
        one = encode(old, part, manifests[-1], config=CONFIG, pool=GrowingBufferPool(limit=1))
        assert one is not None
        made.append(one)
    short = combine_manifests([one.manifest for one in made])
    sent = b"".join(one.buffer.memory for one in made)
    decode(
        memoryview(sent),
        short,
        combine_manifests(manifests),
        target.memory,
        base=base.memory,
        config=CONFIG,
    )
    assert target.memory == new.memory
    with pytest.raises(DigestMismatchError, match="parts"):
        decode(
            memoryview(sent), short, described(new), target.memory, base=base.memory, config=CONFIG
        )


def test_two_percent_of_random_changes_are_less_than_four_percent() -> None:
    base = weights()
    picked = np.random.default_rng(3).permutation(SIZE)[: SIZE // 50]
    made = delta(base, changed(base, picked))
    assert made is not None
    assert made.buffer.nbytes < 0.04 * SIZE


def test_changes_by_little_take_little_more_than_half_of_that() -> None:
    """An optimizer's: most change the last bit of a number."""
    base, new = weights(), weights()
    flat = np.frombuffer(new.memory, np.uint8)
    picked = np.random.default_rng(3).permutation(SIZE)[: SIZE // 50]
    flat[picked] += np.where(picked % 2, 1, 255).astype(np.uint8)
    made = delta(base, new)
    assert made is not None
    assert made.buffer.nbytes < 0.024 * SIZE


@pytest.mark.parametrize(("share", "is_made"), [(0.11, False), (0.14, True)])
def test_a_delta_that_is_longer_than_allowed_is_not_made(share: float, is_made: bool) -> None:
    base = weights()
    new = changed(base, np.random.default_rng(3).permutation(SIZE)[: SIZE // 12])
    config = DeltaConfig(max_share=share, block_bytes=4_096)
    assert (delta(base, new, config) is not None) is is_made


def test_other_weights_have_no_delta() -> None:
    assert delta(weights(1), weights(2)) is None


def test_weights_of_another_size_have_no_delta() -> None:
    assert delta(HostBuffer(SIZE - 1), weights()) is None


@pytest.mark.parametrize("in_place", [True, False])
def test_another_base_is_detected(in_place: bool) -> None:
    base, new = weights(), changed(weights(), np.array([5]))
    made = delta(base, new)
    assert made is not None
    other = changed(base, np.array([400_000]))
    target = other if in_place else HostBuffer(SIZE)
    with pytest.raises(DigestMismatchError, match=r"buckets \[1\] of 4"):
        apply(made, base=None if in_place else other, to=target, new=new)


@pytest.mark.parametrize("end", [0, 10, 40, -1])
def test_a_delta_that_is_cut_off_is_refused(end: int) -> None:
    base, new = weights(), changed(weights(), np.arange(0, SIZE, 77))
    made = delta(base, new)
    assert made is not None
    with pytest.raises(DigestMismatchError):
        decode(
            made.buffer.memory[:end],
            made.manifest,
            described(new),
            HostBuffer(SIZE).memory,
            base=base.memory,
            config=CONFIG,
        )


def test_changes_behind_a_bucket_are_refused() -> None:
    base, new = weights(), changed(weights(), np.array([299_999]))
    made = delta(base, new)
    assert made is not None
    narrow = 260_000  # as many buckets
    other = WeightManifest((), SIZE, narrow, bucket_digests(new.memory, narrow))
    with pytest.raises(DigestMismatchError, match="cannot be read"):
        decode(
            made.buffer.memory,
            made.manifest,
            other,
            HostBuffer(SIZE).memory,
            base=base.memory,
            config=CONFIG,
        )


def test_buffers_of_deltas_are_used_again() -> None:
    """An engine that registers memory then sees the same few."""
    pool, seen = GrowingBufferPool(limit=1), set()
    for nbytes in (70_000, 90_000, 66_000, 131_072):
        hold, buffer = pool.take(nbytes, timeout=0)
        assert (buffer.nbytes, len(buffer.memory)) == (nbytes, nbytes)
        seen.add(buffer.root.address)
        hold.release()
    assert len(seen) == 1
    with pool.take(1, timeout=0)[0], pytest.raises(ExhaustedError):
        pool.take(1, timeout=0)
