"""Which engines a job's settings ask for, and from which models."""

from typing import Any

import pytest
import torch

from rollcall_protocol.algorithm_settings import AlgorithmSettings, preset
from rollcall_protocol.job_config import (
    CriticConfig,
    JobConfig,
    OptimizerConfig,
    ReferenceConfig,
    RewardModelConfig,
)
from rollcall_runtime.train.roles.build_roles import build_policy_step, check_roles, model_named_by
from rollcall_runtime.train.train_engine import EngineSetup
from rollcall_runtime.worker.errors import SpecError
from tests.unit.rollcall_runtime.jobs import job_config
from tests.unit.rollcall_runtime.train.fake_ranks import FakeRanks, as_ranks
from tests.unit.rollcall_runtime.train.roles.bigram_engine import BigramEngine, sample_batch

OTHER = "builtin:reverse-64m"


def setups(job: JobConfig) -> list[EngineSetup]:
    """Of the engines that are made, the actor's last."""
    made: list[EngineSetup] = []

    def make_engine(setup: EngineSetup) -> BigramEngine:
        made.append(setup)
        return BigramEngine(head=setup.head)

    setup = EngineSetup(job.model, as_ranks(FakeRanks()), OptimizerConfig("adamw", 0.5))
    policy = build_policy_step(
        job, setup, make_engine, minibatches=2, reference_token=lambda: "token"
    )
    assert len(policy.engines) == len(made)
    return made


def job(settings: AlgorithmSettings, **changes: Any) -> JobConfig:
    return job_config(algorithm={"settings": settings}, **changes)


def test_grpo_needs_the_actor_alone() -> None:
    (actor,) = setups(job(preset("grpo")))
    assert actor.head == "language-model"
    assert actor.optimizer == OptimizerConfig("adamw", 0.5)


def test_a_kl_term_needs_a_reference_without_an_optimizer() -> None:
    settings = preset("grpo", kl_coefficient=0.1)
    reference, _ = setups(job(settings))
    assert (reference.model, reference.optimizer) == ("builtin:reverse-tiny", None)
    reference, actor = setups(job(settings, reference=ReferenceConfig(model=OTHER)))
    assert (reference.model, actor.model) == (OTHER, "builtin:reverse-tiny")


@pytest.mark.parametrize("every", [0, 2])
def test_a_reference_takes_the_policys_weights_as_often_as_the_job_says(every: int) -> None:
    made = job(preset("grpo", kl_coefficient=0.1), reference=ReferenceConfig(update_every=every))
    setup = EngineSetup(made.model, as_ranks(FakeRanks()), OptimizerConfig("adamw", 0.5))
    policy = build_policy_step(
        made, setup, lambda setup: BigramEngine(head=setup.head), minibatches=1
    )
    actor, reference = (dict(engine.named_weights())["table"] for engine in policy.engines)
    for step in range(2):
        policy.run(sample_batch([0.0, 1.0], [0.0, 0.0]), step=step)
        assert torch.equal(actor, reference) is (bool(every) and step + 1 == every)


def test_a_reference_in_pods_of_its_own_needs_neither_an_engine_nor_its_model_here() -> None:
    apart = job(
        preset("grpo", kl_coefficient=0.1), reference=ReferenceConfig(model="/none", host="h")
    )
    check_roles(apart)
    (actor,) = setups(apart)
    assert actor.model == "builtin:reverse-tiny"


def test_ppo_needs_a_critic_with_a_learning_rate_of_its_own() -> None:
    critic, _ = setups(job(preset("ppo"), critic=CriticConfig(learning_rate=0.25)))
    assert (critic.head, critic.model) == ("value", "builtin:reverse-tiny")
    assert critic.optimizer == OptimizerConfig("adamw", 0.25)
    critic, actor = setups(job(preset("ppo"), critic=CriticConfig(model=OTHER)))
    assert (critic.model, actor.model) == (OTHER, "builtin:reverse-tiny")


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"critic": CriticConfig(model=OTHER)}, "spec.critic.path"),
        ({"critic": CriticConfig()}, "spec.model.path"),
        ({"reference": ReferenceConfig(model=OTHER)}, "spec.reference.path"),
        ({"reward_model": RewardModelConfig(OTHER)}, "spec.rewardModel.path"),
    ],
)
def test_what_is_wrong_with_a_roles_weights_names_the_field_of_its_model(
    changes: dict[str, Any], field: str
) -> None:
    preset_name = "ppo" if "critic" in changes else "grpo"
    role, actor = setups(job(preset(preset_name, kl_coefficient=0.1), **changes))[-2:]
    assert (role.model_field, actor.model_field) == (field, "spec.model.path")


def test_only_errors_about_models_name_the_field_of_a_roles_model() -> None:
    for raised, named in (("spec.model.path", "spec.critic.path"), ("spec.data", "spec.data")):
        with (
            pytest.raises(SpecError, match=f"^{named}: is wrong"),
            model_named_by("spec.critic.path"),
        ):
            raise SpecError(raised, "is wrong")


@pytest.mark.parametrize(("clip", "clipped"), [(0.2, True), (0.0, False)])
def test_the_updates_of_a_batch_move_a_critics_value_by_the_clip(
    clip: float, clipped: bool
) -> None:
    def make_engine(setup: EngineSetup) -> BigramEngine:
        return BigramEngine(head=setup.head)

    made = job(preset("ppo", value_clip=clip))
    setup = EngineSetup(made.model, as_ranks(FakeRanks()), OptimizerConfig("adamw", 0.5))
    policy = build_policy_step(made, setup, make_engine, minibatches=2)
    _, second = policy.run(sample_batch([100.0] * 12), step=0).critic
    assert (second.metrics["vf_clipfrac"] > 0) is clipped


def test_a_reward_model_scores_and_does_not_learn() -> None:
    scorer, _ = setups(job(preset("grpo"), reward_model=RewardModelConfig(OTHER)))
    assert (scorer.head, scorer.model) == ("sequence-classification", OTHER)
    assert scorer.optimizer is None


def test_the_score_counts_as_often_as_its_weight_says_and_the_actor_rests_for_the_warm_up() -> None:
    made = job(
        preset("ppo", normalisation="none", gae_lambda=1.0),
        reward_model=RewardModelConfig(OTHER, weight=0.25),
        critic=CriticConfig(learning_rate=0.25, warmup_steps=1),
    )
    engines: dict[str, BigramEngine] = {}

    def make_engine(setup: EngineSetup) -> BigramEngine:
        return engines.setdefault(setup.head, BigramEngine(head=setup.head))

    setup = EngineSetup(made.model, as_ranks(FakeRanks()), OptimizerConfig("adamw", 0.5))
    policy = build_policy_step(made, setup, make_engine, minibatches=1)
    with torch.no_grad():
        engines["sequence-classification"].table.fill_(2.0)
    batch = sample_batch([1.0, 3.0])
    assert policy.run(batch, step=0).actor == []
    assert len(policy.run(batch, step=1).actor) == 1
    (first, *_) = engines["value"].batches
    assert first.extras["returns"].max(1).values.tolist() == [1.5, 3.5]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"reference": ReferenceConfig(model="/none")}, "spec.reference.path"),
        ({"critic": CriticConfig(model="/none")}, "spec.critic.path"),
        ({"reward_model": RewardModelConfig("/none")}, "spec.rewardModel.path"),
        (
            {"algorithm": {"settings": preset("dapo"), "deterministic": True}},
            "spec.algorithm.settings.dynamicSampling",
        ),
    ],
)
def test_what_cannot_work_is_named(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(SpecError) as caught:
        check_roles(job_config(**changes))
    assert caught.value.field == field


def test_what_can_work_passes() -> None:
    check_roles(job(preset("dapo"), reward_model=RewardModelConfig(OTHER)))
