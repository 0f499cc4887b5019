"""What the bench of one engine measures with `--shard`."""

import pytest

from hack.bench.sync_engines import shard_transfer
from hack.bench.sync_engines.measured_member import MeasuredMember
from rollcall_protocol.wire.ids import MemberId
from rollcall_runtime.sync.weights.shards import RowShard, select
from tests.unit.hack.bench.sync_engines.test_one_engine import KEYS, run

SHARD_KEYS = [
    "shards",
    "bytes_per_receiver",
    "bytes_ratio",
    "whole_seconds",
    "shard_seconds",
    "shard_time_ratio",
]
SECOND = RowShard(1, 2)


def test_parts_are_given_out_in_turn() -> None:
    assert [shard.key for shard in shard_transfer.shards(3, 2)] == ["0/2", "1/2", "0/2"]


def test_figures_are_medians_and_the_most_bytes() -> None:
    turns = shard_transfer.ShardTimings(
        whole=[4.0, 1.0, 9.0], part=[1.0, 2.0, 3.0], nbytes=[400, 500]
    )
    figures = shard_transfer.report(turns, count=2, nbytes=1000)
    assert list(figures) == SHARD_KEYS
    assert (figures["bytes_per_receiver"], figures["bytes_ratio"]) == (500, 0.5)
    assert (figures["whole_seconds"], figures["shard_seconds"]) == (4.0, 2.0)
    assert figures["shard_time_ratio"] == 0.5


def test_the_rows_that_arrived_are_compared_with_those_sent() -> None:
    sender, receiver = (MeasuredMember(MemberId(f"pod-{number}", "boot")) for number in range(2))
    sender.hold_weights(seed=1, nbytes=10_000, bucket_bytes=1000)
    manifest = sender.take_snapshot().manifest
    held = sender._held.buffer.memory
    receiver.hold_part(manifest, SECOND)
    buckets = [manifest.buckets()[number] for number in select(manifest, SECOND).buckets]
    receiver._part.memory[:] = b"".join(bytes(held[start:end]) for start, end in buckets)
    assert receiver.taken_rows(manifest, SECOND) == sender.sent_rows(SECOND)
    receiver.spoil()
    assert receiver.taken_rows(manifest, SECOND) != sender.sent_rows(SECOND)


@pytest.mark.slow
def test_bench_adds_what_receivers_of_a_part_read(capfd: pytest.CaptureFixture[str]) -> None:
    found = run(
        capfd,
        "--engine",
        "store",
        "--config",
        "url=file://{folder}/store",
        "--receivers",
        "2",
        "--senders",
        "2",
        "--size",
        "512Ki",
        "--bucket-size",
        "32Ki",
        "--rounds",
        "2",
        "--shard",
        "2",
    )
    assert list(found) == KEYS + SHARD_KEYS
    assert (found["shards"], found["bytes_per_receiver"], found["verified"]) == (2, 256 << 10, True)


@pytest.mark.slow
def test_an_engine_that_brings_everything_is_refused(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(AssertionError):
        run(capfd, "--engine", "gloo", "--size", "64Ki", "--shard", "2")
    assert "sends all buckets to every receiver" in capfd.readouterr().err
