"""Snapshots of weights on the device: whole, and how fast they are copied and checked there."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

import torch

from hack.first_contact.step import Figures, run
from rollcall_runtime.sync.bucket_checks import wrong_buckets
from rollcall_runtime.sync.memory.device_allocators import device_allocator
from rollcall_runtime.sync.weights.snapshots import Snapshotter, WeightSnapshot
from tests.unit.rollcall_runtime.sync.staging_memory import torch_memory

if TYPE_CHECKING:
    from collections.abc import Callable

    from rollcall_protocol.wire.weight_manifest import WeightManifest
    from rollcall_runtime.sync.memory.device_buffers import DeviceAllocator

_Made = TypeVar("_Made")
SIZES = {"cpu": 64 << 20}  # bytes; elsewhere:
ON_DEVICES = 4 << 30
BUCKET = 64 << 20
SECONDS = 60.0


def snapshots(device: str) -> Figures:
    """AssertionError if a snapshot differs from one of the same weights in host memory, or if its
    checksums do.
    """
    nbytes = SIZES.get(device, ON_DEVICES)
    memory, place = _memory(device), "cpu" if device == "cpu" else device
    torch.manual_seed(1)
    parts = [torch.randn(nbytes // 32, device=place).bfloat16() for _ in range(16)]
    weights = [(f"layer.{number}", part) for number, part in enumerate(parts)]
    on_device = Snapshotter(bucket_bytes=BUCKET, memory=memory, spare_bytes=0)
    both = Snapshotter(
        bucket_bytes=BUCKET, memory=memory, keep=frozenset({"cpu", memory.device}), spare_bytes=0
    )
    plain = Snapshotter(bucket_bytes=BUCKET)
    _, seconds_to_take, seconds_to_digest = _best_of_three(on_device, weights)
    on_device.cheap = True
    summed, _, seconds_to_sum = _best_of_three(on_device, weights)
    here, seconds_to_host = _timed(lambda: both.take(weights, timeout=SECONDS).finish())
    expected = plain.take([(n, t.cpu()) for n, t in weights], timeout=SECONDS).finish()
    assert here.manifest == expected.manifest, "the bytes on the device are others"
    assert bytes(_host(here)[:BUCKET]) == bytes(_host(expected)[:BUCKET])
    assert wrong_buckets(expected.buffer, summed) == [], "a CPU has other sums of the same bytes"
    return {
        "gigabytes": nbytes / 1e9,
        "take_gigabytes_per_second": round(nbytes / seconds_to_take / 1e9, 1),
        "digest_gigabytes_per_second": round(nbytes / seconds_to_digest / 1e9, 1),
        "sums_gigabytes_per_second": round(nbytes / seconds_to_sum / 1e9, 1),
        "to_host_with_digest_gigabytes_per_second": round(nbytes / seconds_to_host / 1e9, 1),
    }


def _best_of_three(
    taker: Snapshotter, weights: list[tuple[str, torch.Tensor]]
) -> tuple[WeightManifest, float, float]:
    """The last manifest, and the least seconds to take a snapshot and to finish it."""
    takes, finishes = [], []
    for _ in range(3):
        draft, seconds = _timed(lambda: taker.take(weights, timeout=SECONDS))
        takes.append(seconds)
        found, seconds = _timed(draft.finish)
        finishes.append(seconds)
        found.release()
    return found.manifest, min(takes), min(finishes)


def _memory(device: str) -> DeviceAllocator:
    return device_allocator(device) or torch_memory()  # the host's, as of a device


def _timed(make: Callable[[], _Made]) -> tuple[_Made, float]:
    began = time.monotonic()
    return make(), time.monotonic() - began


def _host(snapshot: WeightSnapshot) -> memoryview:
    return snapshot.buffer_in(frozenset({"cpu"})).memory


if __name__ == "__main__":
    run(snapshots)
