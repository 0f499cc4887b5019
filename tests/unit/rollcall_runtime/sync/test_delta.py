"""Deltas: what they make of a base, how long they are, and what is refused."""

from typing import Any

import numpy as np
import pytest

from rollcall_protocol.manifest import Manifest
from rollcall_runtime.sync.buffers import HostBuffer
from rollcall_runtime.sync.delta import decode, encode
from rollcall_runtime.sync.errors import ChecksumMismatchError
from rollcall_runtime.sync.staging import checksums

SIZE, BUCKET = 1_000_003, 300_000


def weights(seed: int = 1) -> HostBuffer:
    buffer = HostBuffer(SIZE)
    buffer.memory[:] = np.random.default_rng(seed).bytes(SIZE)
    return buffer


def changed(base: HostBuffer, positions: Any) -> HostBuffer:
    buffer = HostBuffer(SIZE)
    buffer.memory[:] = base.memory
    np.frombuffer(buffer.memory, np.uint8)[positions] ^= 0x5A
    return buffer


def described(buffer: HostBuffer) -> Manifest:
    return Manifest((), SIZE, BUCKET, checksums(buffer.memory, BUCKET))


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
    made = encode(base.memory, new.memory, described(new))
    assert made is not None
    encoded, manifest = made
    assert manifest.total_bytes == encoded.nbytes
    assert manifest.checksums == checksums(encoded.memory, manifest.bucket_bytes)
    decode(base.memory, encoded.memory, described(new), target.memory)
    assert target.memory == new.memory


def test_two_percent_of_random_changes_are_less_than_four_percent() -> None:
    base = weights()
    picked = np.random.default_rng(3).permutation(SIZE)[: SIZE // 50]
    new = changed(base, picked)
    made = encode(base.memory, new.memory, described(new))
    assert made is not None
    assert made[0].nbytes < 0.04 * SIZE


def test_a_delta_that_saves_little_is_not_made() -> None:
    base, new = weights(1), weights(2)
    assert encode(base.memory, new.memory, described(new)) is None


def test_weights_of_another_size_have_no_delta() -> None:
    base, new = HostBuffer(SIZE - 1), weights()
    assert encode(base.memory, new.memory, described(new)) is None


def test_another_base_is_found_out() -> None:
    base, new = weights(), changed(weights(), np.array([5]))
    made = encode(base.memory, new.memory, described(new))
    assert made is not None
    other = changed(base, np.array([400_000]))
    with pytest.raises(ChecksumMismatchError, match=r"buckets \[1\] of 4"):
        decode(other.memory, made[0].memory, described(new), HostBuffer(SIZE).memory)


@pytest.mark.parametrize("end", [0, 10, 40, -1])
def test_a_delta_that_is_cut_off_is_refused(end: int) -> None:
    base, new = weights(), changed(weights(), np.arange(0, SIZE, 77))
    made = encode(base.memory, new.memory, described(new))
    assert made is not None
    with pytest.raises(ChecksumMismatchError):
        decode(base.memory, made[0].memory[:end], described(new), HostBuffer(SIZE).memory)
