"""Advantages against plain loops, written after the papers."""

import random
import statistics

import pytest
import torch
from torch import Tensor

from rollcall_runtime.train.algorithms.advantages import (
    generalised_advantages,
    normalised_over_batch,
    rewards_to_go,
    sample_advantages,
    trajectory_advantages,
)

GROUPS = torch.tensor([0, 0, 0, 0, 7, 7])  # numbers need not follow one another
REWARDS = torch.tensor([0.0, 0.5, 1.0, 0.25, 10.0, 20.0])


def found(baseline: str, normalisation: str = "none") -> list[float]:
    advantages = sample_advantages(REWARDS, GROUPS, baseline=baseline, normalisation=normalisation)
    assert advantages.dtype == torch.float32
    return advantages.tolist()


def test_grpo_compares_a_sample_with_its_group_in_units_of_its_deviation() -> None:
    expected = []
    for group in ([0.0, 0.5, 1.0, 0.25], [10.0, 20.0]):
        mean, deviation = statistics.fmean(group), statistics.pstdev(group)
        expected += [(reward - mean) / deviation for reward in group]
    assert found("group-mean", "group-std") == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("baseline", ["group-mean", "leave-one-out", "none"])
@pytest.mark.parametrize("normalisation", ["group-std", "none"])
def test_a_trajectory_of_several_samples_counts_once_in_its_group(
    baseline: str, normalisation: str
) -> None:
    parts = [3, 1, 1, 2, 1, 1]  # of each trajectory
    rows = [number for number, count in enumerate(parts) for _ in range(count)]
    split = trajectory_advantages(
        REWARDS[rows],
        GROUPS[rows],
        torch.tensor(rows) * 3,
        baseline=baseline,
        normalisation=normalisation,
    )
    whole = found(baseline, normalisation)
    assert split.tolist() == pytest.approx([whole[row] for row in rows])


def test_the_samples_of_a_trajectory_have_the_advantage_of_their_mean() -> None:
    rewards, groups = torch.tensor([1.0, 0.0, 1.5]), torch.tensor([0, 0, 0])
    advantages = trajectory_advantages(
        rewards, groups, torch.tensor([4, 4, 5]), baseline="group-mean", normalisation="none"
    )
    assert advantages.tolist() == [-0.5, -0.5, 0.5]


def test_dr_grpo_takes_the_mean_alone() -> None:
    assert found("group-mean") == pytest.approx([-0.4375, 0.0625, 0.5625, -0.1875, -5, 5])


def test_rloo_compares_a_sample_with_the_others() -> None:
    expected = []
    for group in ([0.0, 0.5, 1.0, 0.25], [10.0, 20.0]):
        for place, reward in enumerate(group):
            others = group[:place] + group[place + 1 :]
            expected.append(reward - statistics.fmean(others))
    assert found("leave-one-out") == pytest.approx(expected)


def test_without_a_baseline_the_advantage_is_the_reward() -> None:
    assert found("none") == REWARDS.tolist()


def test_a_critics_advantages_are_not_of_samples() -> None:
    with pytest.raises(ValueError, match="critic has no advantages of whole samples"):
        found("critic")


@pytest.mark.parametrize("group", [[0.3], [0.0, 0.0, 0.0], [1 / 3, 1 / 3], [0.1] * 7])
@pytest.mark.parametrize("baseline", ["group-mean", "leave-one-out"])
def test_a_group_without_differences_teaches_nothing(group: list[float], baseline: str) -> None:
    for normalisation in ("none", "group-std"):
        advantages = sample_advantages(
            torch.tensor(group),
            torch.zeros(len(group), dtype=torch.int64),
            baseline=baseline,
            normalisation=normalisation,
        )
        assert advantages.tolist() == [0.0] * len(group)


def random_mask(rows: int, length: int, rng: random.Random) -> Tensor:
    """Responses with holes, as those with calls of tools have."""
    return torch.tensor([[rng.random() < 0.7 for _ in range(length)] for _ in range(rows)])


def test_rewards_to_go_add_up_what_comes_later() -> None:
    rng = random.Random(1)
    mask = random_mask(4, 6, rng)
    rewards = torch.rand(4, 6, generator=torch.Generator().manual_seed(1))
    for row, sums in enumerate(rewards_to_go(rewards, mask).tolist()):
        for at in range(6):
            later = [float(rewards[row, t]) for t in range(at, 6) if mask[row, t]]
            assert sums[at] == pytest.approx(sum(later) if mask[row, at] else 0, rel=1e-5)


@pytest.mark.parametrize(
    ("discount", "gae_lambda"), [(1.0, 0.95), (0.9, 0.5), (1.0, 1.0), (1.0, 0.0)]
)
def test_generalised_advantages_are_discounted_sums_of_what_the_critic_missed(
    discount: float, gae_lambda: float
) -> None:
    rng, generator = random.Random(2), torch.Generator().manual_seed(2)
    mask = random_mask(5, 7, rng)
    rewards = torch.rand(5, 7, generator=generator)
    values = torch.rand(5, 7, generator=generator)
    advantages, returns = generalised_advantages(
        rewards, values, mask, discount=discount, gae_lambda=gae_lambda
    )
    for row in range(5):
        places = [at for at in range(7) if mask[row, at]]
        deltas = []
        for number, at in enumerate(places):
            after = float(values[row, places[number + 1]]) if number + 1 < len(places) else 0.0
            deltas.append(float(rewards[row, at]) + discount * after - float(values[row, at]))
        for number, at in enumerate(places):
            expected = sum(
                (discount * gae_lambda) ** k * delta for k, delta in enumerate(deltas[number:])
            )
            assert float(advantages[row, at]) == pytest.approx(expected, abs=1e-5)
            assert float(returns[row, at]) == pytest.approx(
                expected + float(values[row, at]), abs=1e-5
            )
    assert float(advantages[~mask].abs().sum()) == float(returns[~mask].abs().sum()) == 0


def test_normalising_over_the_batch_weighs_tokens_alike() -> None:
    mask = random_mask(4, 6, random.Random(3))
    advantages = torch.rand(4, 6, generator=torch.Generator().manual_seed(3)) * 5
    normalised = normalised_over_batch(advantages, mask)
    tokens = advantages[mask].tolist()
    mean, deviation = statistics.fmean(tokens), statistics.pstdev(tokens)
    expected = [(value - mean) / deviation for value in tokens]
    assert normalised[mask].tolist() == pytest.approx(expected, abs=1e-4)
    assert float(normalised[~mask].abs().sum()) == 0


def test_a_batch_without_tokens_or_differences_teaches_nothing() -> None:
    nothing = torch.zeros(2, 3, dtype=torch.bool)
    assert normalised_over_batch(torch.rand(2, 3), nothing).tolist() == [[0.0] * 3] * 2
    alike = normalised_over_batch(torch.full((2, 3), 0.1), torch.ones(2, 3, dtype=torch.bool))
    assert alike.tolist() == [[0.0] * 3] * 2
