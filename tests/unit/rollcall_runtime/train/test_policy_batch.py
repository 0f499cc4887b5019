"""Samples become rows whose masks and log-probabilities stand beside their targets."""

from dataclasses import replace

import pytest

from rollcall_protocol.wire.messages import Sample
from rollcall_protocol.wire.partial_responses import NOT_SAMPLED
from rollcall_runtime.train.policy_batch import policy_batch

SHORT = Sample(tokens=(7, 2), logprobs=(-1.0, -2.0), versions=(4, 5), reward=0.0)
LONG = Sample(tokens=(7, 8, 2), logprobs=(-0.5, -0.25, -0.125), versions=(5, 5, 5), reward=1.0)


def test_each_response_token_stands_where_the_model_predicts_it() -> None:
    batch = policy_batch([(0, 3, 1), (0, 1)], [[SHORT, LONG], [LONG, LONG]], version=5)
    assert batch.tokens.tolist() == [
        [0, 3, 1, 7, 0],
        [0, 3, 1, 7, 8],
        [0, 1, 7, 8, 0],
        [0, 1, 7, 8, 0],
    ]
    assert batch.lengths.tolist() == [4, 5, 4, 4]
    assert batch.mask.int().tolist()[:3] == [[0, 0, 1, 1, 0], [0, 0, 1, 1, 1], [0, 1, 1, 1, 0]]
    assert batch.extras["behaviour_logprobs"][0].tolist() == [0, 0, -1.0, -2.0, 0]
    assert batch.extras["same_version"][0].tolist() == [0, 0, 0, 1, 0]
    assert batch.targets[batch.mask].tolist() == [7, 2, *[7, 8, 2] * 3]


def test_each_row_has_its_reward_and_the_place_of_its_prompt() -> None:
    batch = policy_batch([(0, 1), (0, 1)], [[SHORT, LONG], [LONG, LONG]], version=5)
    assert batch.extras["rewards"].tolist() == [0.0, 1.0, 1.0, 1.0]
    assert batch.extras["groups"].tolist() == [0, 0, 1, 1]


def test_samples_of_one_trajectory_share_a_number_and_what_it_counts() -> None:
    def part(sample: Sample, number: int) -> Sample:
        return replace(sample, trajectory=number)

    split = [part(SHORT, 0), part(LONG, 0), LONG, part(LONG, 2), part(LONG, 2), SHORT]
    batch = policy_batch([(0, 1), (0, 1)], [split, [LONG, part(LONG, 0)]], version=5)
    assert batch.extras["trajectories"].tolist() == [0, 0, 1, 2, 2, 3, 4, 5]
    shares = [2 / 5, 3 / 5, 1, 1 / 2, 1 / 2, 1, 1, 1]
    assert batch.extras["shares"].tolist() == pytest.approx(shares)


def test_nothing_is_no_batch() -> None:
    with pytest.raises(ValueError, match="at least one sample"):
        policy_batch([(0, 1)], [[]], version=0)
    with pytest.raises(ValueError, match="argument 2"):
        policy_batch([(0, 1)], [], version=0)


@pytest.mark.parametrize(
    ("prompt", "sample"),
    [
        ((0, 1), Sample(tokens=(7, 2), logprobs=(-1.0,), versions=(4, 5), reward=0.0)),
        ((0, 1), Sample(tokens=(7, 2), logprobs=(-1.0, -1.0), versions=(4,), reward=0.0)),
        ((), SHORT),
    ],
)
def test_a_sample_whose_parts_differ_in_length_is_refused(
    prompt: tuple[int, ...], sample: Sample
) -> None:
    with pytest.raises(ValueError, match="a logprob and version for each token"):
        policy_batch([prompt], [[sample]], version=0)


def test_a_token_that_an_environment_gave_is_read_and_not_learnt() -> None:
    spoken = Sample(
        tokens=(7, 4, 4, 2),
        logprobs=(-1.0, 0.0, 0.0, -2.0),
        versions=(5, NOT_SAMPLED, NOT_SAMPLED, 6),
        reward=1.0,
    )
    batch = policy_batch([(0, 3)], [[spoken]], version=5)
    assert batch.tokens.tolist() == [[0, 3, 7, 4, 4]]
    assert batch.mask.int().tolist() == [[0, 1, 0, 0, 1]]
    assert batch.targets[batch.mask].tolist() == [7, 2]
    assert batch.extras["same_version"].tolist() == [[0, 1, 0, 0, 0]]
