"""A reward model reads whole sequences, and learns which of two is better."""

import torch

from rollcall_runtime.train.roles.reward_model import RewardModel, whole_sequences
from rollcall_runtime.train.train_batch import TrainExample, collate
from tests.unit.rollcall_runtime.train.roles.bigram_engine import BigramEngine


def test_whole_sequences_end_with_the_last_target() -> None:
    batch = collate([TrainExample.of_sequence([1, 2, 3, 4]), TrainExample.of_sequence([1, 3])])
    whole = whole_sequences(batch)
    rows = [row[:n].tolist() for row, n in zip(whole.tokens, whole.lengths.tolist(), strict=True)]
    assert rows == [[1, 2, 3, 4], [1, 3]]
    assert whole.mask.shape == whole.tokens.shape


def test_the_better_of_two_gets_the_higher_score() -> None:
    engine = BigramEngine(head="sequence-classification")
    model = RewardModel(engine)
    pairs = [[1, 2, 4], [1, 2, 3], [2, 4], [4, 3]]  # 4 at the end is better than 3
    batch = collate([TrainExample.of_sequence(tokens) for tokens in pairs])
    losses = [model.update(whole_sequences(batch)) for _ in range(5)]
    scores = model.scores(batch)
    assert scores[0] > scores[1]
    assert scores[2] > scores[3]
    assert torch.allclose(scores[0], scores[2])
    assert all(update.skipped == "" for update in losses)
