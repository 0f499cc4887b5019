"""Rewards become advantages by the settings, with the models that these need."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from rollcall_protocol.algorithm_settings import AlgorithmSettings, preset
from rollcall_runtime.models.model_source import Head
from rollcall_runtime.train.algorithms.advantages import sample_advantages
from rollcall_runtime.train.algorithms.kl_estimators import kl_estimate
from rollcall_runtime.train.roles.actor import Actor
from rollcall_runtime.train.roles.critic import Critic
from rollcall_runtime.train.roles.policy_step import PolicyStep
from rollcall_runtime.train.roles.reference import Reference
from rollcall_runtime.train.roles.reward_model import RewardModel
from rollcall_runtime.train.train_batch import TrainBatch
from rollcall_runtime.worker.errors import SpecError
from tests.unit.rollcall_runtime.train.roles.bigram_engine import (
    VOCABULARY,
    BigramEngine,
    sample_batch,
)

REWARDS = [0.0, 1.0, 0.5, 0.25, 3.0, 1.0]
GROUPS = [0.0, 0.0, 0.0, 1.0, 1.0, 1.0]


def trained_on(settings: AlgorithmSettings, batch: TrainBatch, **roles: Any) -> TrainBatch:
    """What the actor's engine got."""
    engine = BigramEngine()
    step = PolicyStep(settings, actor=Actor(engine, settings, minibatches=1), **roles)
    assert len(step.run(batch, step=0).actor) == 1
    return engine.batches[0]


def advantages(settings: AlgorithmSettings, **roles: Any) -> Tensor:
    return trained_on(settings, sample_batch(REWARDS, GROUPS), **roles).extras["advantages"]


@pytest.mark.parametrize("name", ["grpo", "dr-grpo", "rloo"])
def test_every_token_has_its_samples_advantage(name: str) -> None:
    settings = preset(name)
    expected = sample_advantages(
        torch.tensor(REWARDS),
        torch.tensor(GROUPS).long(),
        baseline=settings.baseline,
        normalisation=settings.normalisation,
    )
    mask = sample_batch(REWARDS).mask
    torch.testing.assert_close(advantages(settings), torch.where(mask, expected[:, None], 0.0))


def test_a_trajectory_of_several_samples_is_compared_once() -> None:
    """With samples counted one by one the mean of the first group would be 0.375."""
    rewards, groups = [0.0, 0.0, 1.0, 0.5, 7.0, 5.0], [0.0, 0.0, 0.0, 0.0, 1.0, 1.0]
    batch = sample_batch(rewards, groups)
    batch = batch.with_extras(trajectories=torch.tensor([0.0, 0.0, 1.0, 2.0, 3.0, 4.0]))
    got = trained_on(preset("dr-grpo"), batch).extras["advantages"]
    expected = [row[mask].tolist() for row, mask in zip(got, batch.mask, strict=True)]
    assert [set(row) for row in expected] == [{-0.5}, {-0.5}, {0.5}, {0.0}, {1.0}, {-1.0}]


def test_reinforce_plus_plus_compares_with_the_whole_batch() -> None:
    found, mask = advantages(preset("reinforce++")), sample_batch(REWARDS).mask
    assert float(found[mask].mean()) == pytest.approx(0, abs=1e-6)
    assert float(found[mask].std(correction=0)) == pytest.approx(1, abs=1e-4)


def test_a_response_that_is_too_long_loses_reward() -> None:
    shaped = AlgorithmSettings(
        baseline="none", normalisation="none", overlong_limit=3, overlong_buffer=2
    )
    found = advantages(shaped)[:, 1].tolist()
    # Responses have one, two and three tokens by turns.
    expected = [reward - (0, 0.5, 1)[row % 3] for row, reward in enumerate(REWARDS)]
    assert found == pytest.approx(expected)


def test_the_penalty_of_a_long_response_is_as_large_as_its_setting() -> None:
    shaped = AlgorithmSettings(
        baseline="none",
        normalisation="none",
        overlong_limit=3,
        overlong_buffer=2,
        overlong_penalty=0.5,
    )
    found = advantages(shaped)[:, 1].tolist()
    expected = [reward - 0.5 * (0, 0.5, 1)[row % 3] for row, reward in enumerate(REWARDS)]
    assert found == pytest.approx(expected)


def test_the_reward_models_score_is_added_to_the_reward() -> None:
    engine = BigramEngine(head="sequence-classification")
    with torch.no_grad():
        engine.table.copy_(torch.arange(VOCABULARY)[:, None])
    settings = AlgorithmSettings(baseline="none", normalisation="none")
    found = advantages(settings, reward_model=RewardModel(engine), reward_weight=0.1)[:, 1]
    batch = sample_batch(REWARDS)
    last = batch.targets.gather(1, (batch.lengths - 1)[:, None])[:, 0]
    torch.testing.assert_close(found, torch.tensor(REWARDS) + 0.1 * last)


# --- reference -----------------------------------------------------------------------------------


def biased_reference() -> Reference:
    """Of the model's size, but it likes token 0."""
    engine = BigramEngine()
    with torch.no_grad():
        engine.table[:, 0] = 1.0
    return Reference(engine)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_a_kl_term_in_the_reward_counts_from_each_token_on(estimator: str) -> None:
    settings = preset(
        "reinforce++", normalisation="none", kl_coefficient=0.5, kl_estimator=estimator
    )
    reference = biased_reference()
    found, batch = advantages(settings, reference=reference), sample_batch(REWARDS, GROUPS)
    gaps = kl_estimate(batch.extras["behaviour_logprobs"], reference.logprobs(batch), estimator)
    for row, reward in enumerate(REWARDS):
        places = batch.mask[row].nonzero()[:, 0].tolist()
        for at in places:
            penalty = sum(float(gaps[row, later]) for later in places if later >= at)
            assert float(found[row, at]) == pytest.approx(reward - 0.5 * penalty, abs=1e-5)


def test_a_kl_term_in_the_loss_leaves_advantages_alone() -> None:
    settings = AlgorithmSettings(kl_coefficient=0.5)
    reference = biased_reference()
    got = trained_on(settings, sample_batch(REWARDS, GROUPS), reference=reference)
    torch.testing.assert_close(got.extras["advantages"], advantages(AlgorithmSettings()))
    assert "reference_logprobs" in got.extras


def test_a_moving_reference_follows_the_actor_every_so_many_steps() -> None:
    settings = AlgorithmSettings(kl_coefficient=0.1)
    engine, reference = BigramEngine(), Reference(BigramEngine(), update_every=2)
    step = PolicyStep(settings, actor=Actor(engine, settings, minibatches=1), reference=reference)
    tables = [engine.table.detach().clone()]
    for number in range(4):
        step.run(sample_batch(REWARDS, GROUPS), step=number)
        tables.append(engine.table.detach().clone())
        held = dict(reference.engine.named_weights())["table"]
        assert torch.equal(held, tables[(number + 1) // 2 * 2])


# --- critic --------------------------------------------------------------------------------------


def critic(*, rate: float = 1.0) -> Critic:
    return Critic(BigramEngine(head="value", learning_rate=rate), value_clip=0.0, minibatches=1)


def test_ppo_trains_a_critic_on_returns_and_the_actor_on_what_it_missed() -> None:
    settings = preset("ppo", normalisation="none", gae_lambda=1.0)
    values = critic()
    got = trained_on(settings, sample_batch(REWARDS, GROUPS), critic=values)
    batch = sample_batch(REWARDS, GROUPS)
    # A critic that expects nothing misses the whole reward at each token.
    expected = torch.where(batch.mask, torch.tensor(REWARDS)[:, None], 0.0)
    torch.testing.assert_close(got.extras["advantages"], expected)
    torch.testing.assert_close(got.extras["returns"], expected)
    assert float(got.extras["old_values"].abs().sum()) == 0, "as before its update"
    assert float(values.values(batch)[batch.mask].mean()) > 0


def test_with_a_critic_later_rewards_are_discounted_for_each_token() -> None:
    settings = preset("ppo", normalisation="none", gae_lambda=1.0, discount=0.5)
    found, mask = advantages(settings, critic=critic()), sample_batch(REWARDS).mask
    for row, reward in enumerate(REWARDS):
        count = int(mask[row].sum())
        expected = [reward * 0.5**later for later in reversed(range(count))]
        assert found[row][mask[row]].tolist() == pytest.approx(expected)


def test_advantages_of_ppo_are_normalised_over_the_batch_and_returns_are_not() -> None:
    batch = trained_on(preset("ppo"), sample_batch(REWARDS, GROUPS), critic=critic())
    found = batch.extras["advantages"][batch.mask]
    assert float(found.mean()) == pytest.approx(0, abs=1e-6)
    assert float(found.std(correction=0)) == pytest.approx(1, abs=1e-4)
    assert float(batch.extras["returns"].max()) == max(REWARDS)


def test_a_critic_learns_to_expect_the_rewards() -> None:
    settings, values, batch = preset("ppo"), critic(rate=2.0), sample_batch([1.0] * 6)
    step = PolicyStep(
        settings,
        actor=Actor(BigramEngine(learning_rate=0.0), settings, minibatches=1),
        critic=values,
    )
    losses = [step.run(batch, step=number).critic[0].loss for number in range(30)]
    assert losses[-1] < losses[0] / 10
    assert values.values(batch)[batch.mask].tolist() == pytest.approx(
        [1.0] * int(batch.mask.sum()), abs=0.3
    )


def test_the_actor_rests_while_the_critic_warms_up() -> None:
    settings = preset("ppo")
    engine = BigramEngine()
    step = PolicyStep(
        settings,
        actor=Actor(engine, settings, minibatches=1),
        critic=critic(),
        critic_warmup=2,
    )
    trained = [len(step.run(sample_batch(REWARDS), step=number).actor) for number in range(4)]
    assert trained == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("settings", "missing"),
    [(preset("ppo"), "needs a critic"), (preset("grpo", kl_coefficient=1.0), "needs a reference")],
    ids=["critic", "reference"],
)
def test_a_missing_role_is_an_error(settings: AlgorithmSettings, missing: str) -> None:
    with pytest.raises(ValueError, match=missing):
        PolicyStep(settings, actor=Actor(BigramEngine(), settings, minibatches=1))


@pytest.mark.parametrize(
    ("head", "field"),
    [
        ("value", "spec.critic.learningRate"),
        ("sequence-classification", "spec.rewardModel.path"),
    ],
)
def test_a_model_that_gives_nan_is_named(head: Head, field: str) -> None:
    engine = BigramEngine(head=head)
    with torch.no_grad():
        engine.table.fill_(math.nan)
    roles: dict[str, Any] = (
        {"critic": Critic(engine, value_clip=0.0, minibatches=1)}
        if head == "value"
        else {"reward_model": RewardModel(engine)}
    )
    settings = preset("ppo" if head == "value" else "grpo")
    with pytest.raises(SpecError) as caught:
        trained_on(settings, sample_batch(REWARDS, GROUPS), **roles)
    assert caught.value.field == field
    assert "not finite" in caught.value.problem


def test_figures_stay_finite_for_any_reward() -> None:
    settings = AlgorithmSettings()
    engine = BigramEngine()
    step = PolicyStep(settings, actor=Actor(engine, settings, minibatches=2))
    result = step.run(sample_batch([1e30, 0.0, -1e30, 5.0]), step=0)
    assert all(math.isfinite(update.loss) for update in result.actor)


@pytest.mark.parametrize(
    ("rewards", "share"),
    [
        ([0.0, 1.0, 0.25, 0.0, 3.0, 1.0], 1.0),
        ([0.5] * 6, 0.0),
        ([0.5, 0.5, 0.5, 0.0, 1.0, 1.0], 0.5),
    ],
    ids=["all differ", "all alike", "one group is alike"],
)
def test_a_step_says_what_share_of_its_samples_teaches_something(
    rewards: list[float], share: float
) -> None:
    settings = preset("grpo")
    step = PolicyStep(settings, actor=Actor(BigramEngine(), settings, minibatches=1))
    assert step.run(sample_batch(rewards, GROUPS), step=0).with_advantage == share


def test_a_step_says_how_long_it_waited_for_a_reference_elsewhere() -> None:
    settings = preset("grpo", kl_coefficient=0.1)

    class Elsewhere(Reference):
        waited = 2.5

    for kind, waited in ((Reference, None), (Elsewhere, 2.5)):
        step = PolicyStep(
            settings,
            actor=Actor(BigramEngine(), settings, minibatches=1),
            reference=kind(BigramEngine()),
        )
        assert step.run(sample_batch(REWARDS, GROUPS), step=0).wait_for_reference == waited
