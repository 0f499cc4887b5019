"""What all sides train on."""

import torch

from hack.bench.training.random_rows import RandomRows


def test_a_batch_is_the_same_wherever_it_is_made() -> None:
    rows = RandomRows(rows=5, shortest=8, longest=64, vocabulary=100)
    assert torch.equal(rows.batch(3).tokens, rows.batch(3).tokens)
    assert not torch.equal(rows.batch(3).tokens[:, :8], rows.batch(4).tokens[:, :8])


def test_logarithms_of_lengths_are_uniformly_distributed() -> None:
    lengths = RandomRows(rows=4000, shortest=64, longest=512, vocabulary=100).batch(0).lengths
    assert (int(lengths.min()), int(lengths.max())) == (64, 512)
    # A third of them within each factor of two.
    for low in (64, 128, 256):
        share = ((lengths >= low) & (lengths < 2 * low)).float().mean()
        assert 0.3 < float(share) < 0.37, low


def test_every_token_but_the_first_is_predicted() -> None:
    batch = RandomRows(rows=2, shortest=16, longest=16, vocabulary=100).batch(0)
    assert batch.mask.all()
    assert torch.equal(batch.targets[:, :-1], batch.tokens[:, 1:])
