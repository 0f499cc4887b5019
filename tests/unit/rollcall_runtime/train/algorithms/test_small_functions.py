"""KL estimators, aggregation and the overlong penalty, by hand."""

import math
import random

import pytest
import torch

from rollcall_runtime.train.algorithms.advantages import overlong_penalty
from rollcall_runtime.train.algorithms.kl_estimators import kl_estimate
from rollcall_runtime.train.algorithms.policy_loss import aggregation_denominator, token_weights


@pytest.mark.parametrize(
    ("estimator", "value"),
    [("k1", math.log(2)), ("k2", math.log(2) ** 2 / 2), ("k3", 0.5 - 1 + math.log(2))],
)
def test_estimates_of_a_token_that_became_twice_as_likely(estimator: str, value: float) -> None:
    found = kl_estimate(torch.tensor(0.4).log(), torch.tensor(0.2).log(), estimator)
    assert float(found) == pytest.approx(value, rel=1e-5)


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_the_unbiased_estimates_average_to_the_divergence(estimator: str) -> None:
    policy, reference = torch.tensor([0.7, 0.2, 0.1]), torch.tensor([0.2, 0.3, 0.5])
    divergence = sum(
        p * math.log(p / q) for p, q in zip(policy.tolist(), reference.tolist(), strict=True)
    )
    estimates = kl_estimate(policy.log(), reference.log(), estimator)
    assert float((policy * estimates).sum()) == pytest.approx(divergence, rel=1e-5)


@pytest.mark.parametrize("estimator", ["k2", "k3"])
def test_estimates_that_are_never_negative(estimator: str) -> None:
    gaps = torch.linspace(-5, 5, 101)
    assert float(kl_estimate(gaps, torch.zeros_like(gaps), estimator).min()) >= 0


def test_as_a_loss_k2_has_the_gradient_of_the_divergence_and_k1_none() -> None:
    logits = torch.tensor([0.5, -0.3, 0.1], requires_grad=True)
    reference = torch.tensor([0.2, 0.3, 0.5]).log()

    def expected_gradient(estimator: str) -> torch.Tensor:
        """The mean over samples of the estimate's own gradient."""
        logprobs = logits.log_softmax(0)
        estimates = kl_estimate(logprobs, reference, estimator)
        mean = (logprobs.exp().detach() * estimates).sum()
        return torch.autograd.grad(mean, logits)[0]

    logprobs = logits.log_softmax(0)
    divergence = (logprobs.exp() * (logprobs - reference)).sum()
    (right,) = torch.autograd.grad(divergence, logits)
    torch.testing.assert_close(expected_gradient("k2"), right)
    torch.testing.assert_close(expected_gradient("k1"), torch.zeros(3), atol=1e-6, rtol=0)


def test_an_unknown_estimator_is_refused() -> None:
    with pytest.raises(ValueError, match="known: k1, k2, k3"):
        kl_estimate(torch.zeros(1), torch.zeros(1), "k4")


@pytest.mark.parametrize("aggregation", ["token-mean", "sequence-mean", "sequence-sum"])
def test_aggregation_equals_plain_loops(aggregation: str) -> None:
    rng = random.Random(1)
    rows = [[rng.uniform(-1, 1) for _ in range(rng.randint(0, 5))] for _ in range(6)]
    losses, mask = torch.zeros(6, 5), torch.zeros(6, 5, dtype=torch.bool)
    for number, row in enumerate(rows):
        losses[number, : len(row)] = torch.tensor(row)
        mask[number, : len(row)] = True
    counted = [row for row in rows if row]
    expected = {
        "token-mean": sum(map(sum, counted)) / sum(map(len, counted)),
        "sequence-mean": sum(sum(row) / len(row) for row in counted) / len(counted),
        "sequence-sum": sum(sum(row) / 8 for row in counted) / len(counted),
    }[aggregation]
    weights = token_weights(mask, aggregation=aggregation, length=8)
    found = (losses * weights).sum() / aggregation_denominator(mask, aggregation=aggregation)
    assert float(found) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("aggregation", ["token-mean", "sequence-mean", "sequence-sum"])
def test_a_trajectory_counts_the_same_however_many_rows_it_is(aggregation: str) -> None:
    losses = [[0.5, -1.0, 2.0, 0.25], [3.0, 1.0]]

    def found(rows: list[list[float]], shares: list[float]) -> float:
        of_rows, mask = torch.zeros(len(rows), 4), torch.zeros(len(rows), 4, dtype=torch.bool)
        for number, row in enumerate(rows):
            of_rows[number, : len(row)] = torch.tensor(row)
            mask[number, : len(row)] = True
        share = torch.tensor(shares)
        weights = token_weights(mask, share, aggregation=aggregation, length=8)
        whole = aggregation_denominator(mask, share, aggregation=aggregation)
        return float((of_rows * weights).sum() / whole)

    first, second = losses
    split = found([first[:1], first[1:], second], [0.25, 0.75, 1.0])
    assert split == pytest.approx(found(losses, [1.0, 1.0]))


@pytest.mark.parametrize(
    ("tokens", "penalty"), [(1, 0.0), (80, 0.0), (90, -0.5), (95, -0.75), (100, -1.0), (120, -1.0)]
)
def test_the_overlong_penalty_grows_within_the_buffer(tokens: int, penalty: float) -> None:
    found = overlong_penalty(torch.tensor([tokens]), limit=100, buffer=20)
    assert found.tolist() == pytest.approx([penalty])
