"""Batches of an engine: rows stay together however a batch is cut, and wrong shapes are refused."""

import pytest
import torch

from rollcall_runtime.train.train_batch import TrainBatch, TrainExample, collate
from tests.unit.rollcall_runtime.train.batches import random_batch


def test_a_sequence_predicts_each_next_token() -> None:
    example = TrainExample.of_sequence([5, 6, 7, 8], predicted_from=2)
    assert list(example.tokens) == [5, 6, 7]
    assert list(example.targets) == [6, 7, 8]
    assert list(example.mask) == [False, True, True]
    with pytest.raises(ValueError, match="at least two tokens"):
        TrainExample.of_sequence([5])


def test_rows_are_padded_on_the_right() -> None:
    batch = collate(
        [
            TrainExample([1, 2], [2, 3], [False, True], {"label": 1.0, "weight": [0.5, 0.25]}),
            TrainExample([4], [5], [True], {"label": 2.0, "weight": [0.125]}),
        ]
    )
    assert batch.tokens.tolist() == [[1, 2], [4, 0]]
    assert batch.targets.tolist() == [[2, 3], [5, 0]]
    assert batch.mask.tolist() == [[False, True], [True, False]]
    assert batch.lengths.tolist() == [2, 1]
    assert batch.extras["label"].tolist() == [1, 2]
    assert batch.extras["weight"].tolist() == [[0.5, 0.25], [0.125, 0]]


@pytest.mark.parametrize(("parts", "sizes"), [(1, [10]), (3, [3, 3, 4]), (99, [1] * 10)])
def test_a_split_loses_and_doubles_nothing(parts: int, sizes: list[int]) -> None:
    batch = random_batch(seed=1, prompts=5, group_size=2)
    split = batch.split(parts)
    assert [part.rows for part in split] == sizes
    for name in ("advantages", "behaviour_logprobs"):
        whole = batch.extras[name].sum()
        assert float(sum(part.extras[name].sum() for part in split)) == pytest.approx(float(whole))
    targets = torch.cat([part.targets[part.mask] for part in split])
    assert torch.equal(targets, batch.targets[batch.mask])


def test_rows_that_are_selected_lose_the_padding_of_others() -> None:
    batch = collate([TrainExample.of_sequence(range(n)) for n in (3, 9, 4)])
    chosen = batch.select([2, 0])
    assert chosen.tokens.tolist() == [[0, 1, 2], [0, 1, 0]]
    assert chosen.lengths.tolist() == [3, 2]
    assert batch.select([]).tokens.shape == (0, 0)


@pytest.mark.parametrize(
    ("examples", "message"),
    [
        ([], "at least one example"),
        ([TrainExample([1, 2], [2], [True, True])], "example 0 has another number of targets"),
        ([TrainExample([1], [2], [True], {"a": [1.0, 2.0]})], "2 of a for 1 tokens"),
        (
            [TrainExample([1], [2], [True], {"a": 1.0}), TrainExample([1], [2], [True])],
            "example 1 has other extras",
        ),
        (
            [TrainExample([1], [2], [True], {"a": v}) for v in (1.0, [1.0])],
            "one number for a sequence, or one for each position",
        ),
    ],
)
def test_examples_that_do_not_fit_are_refused(examples: list[TrainExample], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        collate(examples)


def test_tensors_that_do_not_stand_beside_each_other_are_refused() -> None:
    batch = random_batch(seed=1)
    with pytest.raises(ValueError, match="proximal is"):
        batch.with_extras(proximal=torch.zeros(3, 3))
    with pytest.raises(ValueError, match="advantages is"):
        batch.with_extras(advantages=batch.extras["advantages"][:-1])
    for name in ("targets", "mask", "lengths"):
        parts = {n: getattr(batch, n) for n in ("tokens", "targets", "mask", "lengths")}
        with pytest.raises(ValueError, match=f"{name} is"):
            TrainBatch(**{**parts, name: parts[name][:-1]})
