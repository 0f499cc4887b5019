"""What the figures of the bench of one engine mean."""

import pytest

from hack.bench.sync_engines import throughput
from hack.bench.sync_engines.measured_member import MeasuredMember, bf16_tensors
from hack.bench.sync_engines.throughput import BenchCase, RoundTimings
from rollcall_protocol.wire.ids import MemberId

LOAD = BenchCase(engine="gloo", receivers=2, nbytes=1000, bucket_bytes=100, rounds=3)


def test_figures_are_medians_and_ratios_of_them() -> None:
    rounds = RoundTimings(
        engine=[2e-6, 9e-6, 1e-6],
        star=[4e-6, 1e-6, 9e-6],
        memcpy=[3e9, 1e9, 2e9],
        snapshot=[1.0, 2.0, 3.0],
        digests=[0.0] * 3,
        blocking=[8.0, 30.0, 4.0],
    )
    figures = throughput.report(LOAD, rounds, correct=True)
    assert figures["gbps_per_receiver"] == 0.5
    assert figures["tcp_gbps_per_receiver"] == 0.25
    assert figures["ratio_to_tcp"] == 2.0
    assert figures["memcpy_gbps"] == 2.0
    assert (figures["snapshot_seconds"], figures["blocking_seconds"]) == (2.0, 8.0)
    assert figures["visible_ratio"] == 4.0


def test_weights_are_bf16_of_just_that_many_bytes() -> None:
    tensors = [tensor for _, tensor in bf16_tensors(seed=1, nbytes=(33 << 20) + 2)]
    assert [tensor.nbytes for tensor in tensors] == [32 << 20, (1 << 20) + 2]
    assert {str(tensor.dtype) for tensor in tensors} == {"torch.bfloat16"}


@pytest.fixture
def pair() -> tuple[MeasuredMember, MeasuredMember]:
    """A sender, and a receiver that has got everything."""
    sender, receiver = (MeasuredMember(MemberId(f"pod-{number}", "boot")) for number in range(2))
    sender.hold_weights(seed=1, nbytes=10_000, bucket_bytes=1000)
    manifest = sender.take_snapshot().manifest
    receiver.hold_target(manifest.total_bytes)
    receiver._target.memory[:] = sender._held.buffer.memory
    return sender, receiver


def test_bytes_that_arrived_are_compared_with_those_sent(
    pair: tuple[MeasuredMember, MeasuredMember],
) -> None:
    sender, receiver = pair
    manifest = sender.take_snapshot().manifest
    assert receiver.taken_digests(manifest) == sender.sent_digests()


def test_what_an_earlier_round_left_does_not_count(
    pair: tuple[MeasuredMember, MeasuredMember],
) -> None:
    sender, receiver = pair
    manifest = sender.take_snapshot().manifest
    receiver.spoil()
    assert receiver.taken_digests(manifest) != sender.sent_digests()
