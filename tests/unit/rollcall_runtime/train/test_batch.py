"""Samples become rows whose masks, log-probabilities and versions stand beside their tokens."""

import pytest
import torch

from rollcall_protocol.wire.messages import Sample
from rollcall_runtime.train.batch import Batch, collate
from tests.unit.rollcall_runtime.train.batches import random_batch

SHORT = Sample(tokens=(7, 2), logprobs=(-1.0, -2.0), versions=(4, 5), reward=0.0)
LONG = Sample(tokens=(7, 8, 2), logprobs=(-0.1, -0.2, -0.3), versions=(5, 5, 5), reward=1.0)


def test_each_response_token_stands_where_the_model_predicts_it() -> None:
    batch = collate([(0, 3, 1), (0, 1)], [[SHORT, LONG], [LONG, LONG]])
    assert batch.tokens.tolist() == [
        [0, 3, 1, 7, 2, 0],
        [0, 3, 1, 7, 8, 2],
        [0, 1, 7, 8, 2, 0],
        [0, 1, 7, 8, 2, 0],
    ]
    assert batch.mask.int().tolist()[:3] == [[0, 0, 1, 1, 0], [0, 0, 1, 1, 1], [0, 1, 1, 1, 0]]
    assert batch.logprobs[0].tolist() == [0, 0, -1.0, -2.0, 0]
    assert batch.versions[0].tolist() == [-1, -1, 4, 5, -1]
    assert batch.tokens[:, 1:][batch.mask].tolist() == [7, 2, *[7, 8, 2] * 3]


def test_advantages_are_normalised_within_each_prompts_group() -> None:
    batch = collate([(0, 1), (0, 1)], [[SHORT, LONG], [LONG, LONG]])
    assert batch.advantages.tolist() == pytest.approx([-1.0, 1.0, 0.0, 0.0], abs=1e-5)


@pytest.mark.parametrize(("parts", "sizes"), [(1, [10]), (3, [3, 3, 4]), (99, [1] * 10)])
def test_a_split_loses_and_doubles_nothing(parts: int, sizes: list[int]) -> None:
    batch = random_batch(seed=1, prompts=5, group_size=2)
    batch = batch.with_proximal(torch.zeros_like(batch.logprobs))
    split = batch.split(parts)
    assert [part.rows for part in split] == sizes
    assert torch.equal(torch.cat([part.tokens for part in split]), batch.tokens)
    assert torch.equal(torch.cat([part.advantages for part in split]), batch.advantages)
    assert all(part.proximal is not None and len(part.proximal) == part.rows for part in split)


def test_nothing_is_no_batch() -> None:
    with pytest.raises(ValueError, match="at least one sample"):
        collate([(0, 1)], [[]])
    with pytest.raises(ValueError, match="argument 2"):
        collate([(0, 1)], [])


def test_a_sample_whose_parts_differ_in_length_is_refused() -> None:
    broken = Sample(tokens=(7, 2), logprobs=(-1.0,), versions=(4, 5), reward=0.0)
    with pytest.raises(ValueError, match="a logprob and version for each token"):
        collate([(0, 1)], [[broken]])


def test_tensors_that_do_not_stand_beside_each_other_are_refused() -> None:
    batch = random_batch(seed=1)
    with pytest.raises(ValueError, match="proximal is"):
        batch.with_proximal(torch.zeros(3, 3))
    with pytest.raises(ValueError, match="advantages are"):
        Batch(
            tokens=batch.tokens,
            mask=batch.mask,
            logprobs=batch.logprobs,
            versions=batch.versions,
            advantages=batch.advantages[:-1],
        )
