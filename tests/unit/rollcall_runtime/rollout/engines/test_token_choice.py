"""The distribution that a job's sampling settings leave, and stop strings."""

import math
from collections.abc import Sequence

import pytest
import torch

from rollcall_protocol.sampling_config import SamplingConfig
from rollcall_runtime.rollout.engines.token_choice import (
    completes_a_stop,
    likeliest,
    token_logprobs,
)

LOGITS = torch.tensor([[0.5, 0.25, 0.15, 0.1], [0.1, 0.15, 0.25, 0.5]]).log()


def probabilities(**settings: float) -> list[list[float]]:
    found = token_logprobs(LOGITS, SamplingConfig(**settings)).exp()  # type: ignore[arg-type]
    return [[round(number, 5) for number in row] for row in found.tolist()]


def test_without_settings_it_is_the_models() -> None:
    assert probabilities() == [[0.5, 0.25, 0.15, 0.1], [0.1, 0.15, 0.25, 0.5]]


def test_the_temperature_divides_the_logits() -> None:
    squares = torch.tensor([0.25, 0.0625, 0.0225, 0.01])
    assert probabilities(temperature=0.5)[0] == pytest.approx(
        (squares / squares.sum()).tolist(), abs=1e-5
    )


def test_the_likeliest_tokens_are_kept() -> None:
    assert probabilities(top_k=2) == [[0.66667, 0.33333, 0, 0], [0, 0, 0.33333, 0.66667]]
    assert probabilities(top_k=1) == [[1, 0, 0, 0], [0, 0, 0, 1]]
    assert probabilities(top_k=99) == probabilities()


@pytest.mark.parametrize(
    ("top_p", "kept"), [(0.01, 1), (0.49, 1), (0.51, 2), (0.74, 2), (0.76, 3), (0.95, 4), (1.0, 4)]
)
def test_as_many_tokens_are_kept_as_reach_the_probability(top_p: float, kept: int) -> None:
    for row in probabilities(top_p=top_p):
        assert sum(number > 0 for number in row) == kept
        assert sum(row) == pytest.approx(1, abs=1e-4)


def test_the_probability_is_that_of_the_tokens_that_the_number_leaves() -> None:
    # 0.5 of 0.75 is two thirds: enough for 0.66, not for 0.67.
    assert probabilities(top_k=2, top_p=0.66)[0] == [1, 0, 0, 0]
    assert probabilities(top_k=2, top_p=0.67)[0] == [0.66667, 0.33333, 0, 0]


def letters(tokens: Sequence[int]) -> str:
    return "".join(chr(token) for token in tokens)


@pytest.mark.parametrize(
    ("response", "stops", "completes"),
    [
        ("abc\n", ["\n"], True),
        ("abc", ["\n"], False),
        ("x" * 1000 + "END", ["STOP", "END"], True),
        ("x" * 1000 + "EN", ["STOP", "END"], False),
        ("", ["a"], False),
    ],
)
def test_a_stop_is_looked_for_at_the_end(
    response: str, stops: list[str], *, completes: bool
) -> None:
    tokens = [ord(letter) for letter in response]
    assert completes_a_stop(tokens, stops, letters) is completes


def test_the_likeliest_are_of_the_distribution_that_is_sampled_from() -> None:
    def found(most: int, **settings: float) -> list[tuple[int, float]]:
        own = token_logprobs(LOGITS, SamplingConfig(**settings))  # type: ignore[arg-type]
        return [(token, round(math.exp(value), 5)) for token, value in likeliest(own[1], most)]

    assert found(0) == []
    assert found(2) == [(3, 0.5), (2, 0.25)]
    assert found(20) == [(3, 0.5), (2, 0.25), (1, 0.15), (0, 0.1)]
    assert found(20, top_k=2) == [(3, 0.66667), (2, 0.33333)]
