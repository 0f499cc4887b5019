"""What rank 0 says arrives on a rank of a group of one; test_process_group has more of them."""

import pytest
import torch

from rollcall_runtime.train.batch_broadcast import LeaderSignal, broadcast_work
from rollcall_runtime.train.train_batch import TrainBatch
from tests.unit.rollcall_runtime.train.batches import random_batch
from tests.unit.rollcall_runtime.train.fake_ranks import FakeRanks, as_ranks


@pytest.mark.parametrize("signal", LeaderSignal)
def test_a_signal_arrives(signal: LeaderSignal) -> None:
    leader = FakeRanks()
    assert broadcast_work(as_ranks(leader), signal) is signal
    follower = FakeRanks(rank=1, said=leader.broadcasts)
    assert broadcast_work(as_ranks(follower), None) is signal


def test_a_batch_arrives_in_its_shapes() -> None:
    leader, batch = FakeRanks(), random_batch(seed=1)
    assert broadcast_work(as_ranks(leader), batch) is batch
    found = broadcast_work(as_ranks(FakeRanks(rank=1, said=leader.broadcasts)), None)
    assert isinstance(found, TrainBatch)
    for name in ("tokens", "targets", "mask", "lengths"):
        sent, got = getattr(batch, name), getattr(found, name)
        assert (got.shape, got.dtype) == (sent.shape, sent.dtype), name
    assert {n: t.shape for n, t in found.extras.items()} == {
        n: t.shape for n, t in batch.extras.items()
    }
    assert all(tensor.dtype == torch.float32 for tensor in found.extras.values())


def test_rank_0_must_have_work() -> None:
    with pytest.raises(ValueError, match="must give a batch or a signal"):
        broadcast_work(as_ranks(FakeRanks()), None)
