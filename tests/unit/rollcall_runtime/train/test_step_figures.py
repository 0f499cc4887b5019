"""The figures of a step have the field's names."""

import math
from dataclasses import replace
from itertools import combinations

import pytest

from rollcall_protocol.data_config import DataConfig, DataSource
from rollcall_protocol.job_config import EvaluationConfig
from rollcall_protocol.prompts.prompt_ledger import CompletedPrompt
from rollcall_protocol.wire.ids import Lineage, MemberId, Version
from rollcall_protocol.wire.messages import Completion, PromptLease, Sample
from rollcall_runtime.coordinator.sync_group_driver import Publication
from rollcall_runtime.train.response_ends import ResponseEnds
from rollcall_runtime.train.roles.model_update import ModelUpdate
from rollcall_runtime.train.roles.policy_step import PolicyStepResult
from rollcall_runtime.train.step_figures import (
    StepTimes,
    evaluation_figures,
    pass_at_k,
    publication_figures,
    step_figures,
)


def prompt(*rewards: float, age: int) -> CompletedPrompt:
    samples = tuple(
        Sample((1,) * count, (-0.1,) * count, (0,) * count, reward)
        for count, reward in enumerate(rewards, start=1)
    )
    version = Version(Lineage(1, 1), 0)
    completion = Completion("job", MemberId("a", "b"), "lease", version, samples)
    return CompletedPrompt(PromptLease("lease", 0, (1,), len(samples), seed=0), completion, age)


def test_a_trajectory_of_several_samples_has_one_reward() -> None:
    item = prompt(0.0, 0.0, 1.0, age=0)
    first, second, third = item.completion.samples
    parts = (replace(first, trajectory=0), replace(second, trajectory=0), third)
    split = replace(item, completion=replace(item.completion, samples=parts))
    figures = step_figures([split], PolicyStepResult())
    assert (figures["reward/mean"], figures["response_length/max"]) == (0.5, 3)


def update(loss: float, norm: float, *, rate: float = 1e-3, **metrics: float) -> ModelUpdate:
    return ModelUpdate(loss, norm, rate, 4, metrics)


def test_samples_and_models_are_described() -> None:
    result = PolicyStepResult(
        actor=[
            update(0.5, 1.0, rate=2e-3, mismatch_kl=0.01, pg_clipfrac=0.0),
            update(0.7, 3.0, mismatch_kl=0.5, pg_clipfrac=0.2),
        ],
        critic=[update(2.0, 4.0)],
        with_advantage=0.75,
    )
    batch = [prompt(0.0, 1.0, age=1), prompt(0.5, age=3)]
    figures = step_figures(batch, result, ResponseEnds(frozenset({9}), limit=2))
    assert figures == pytest.approx(
        {
            "reward/mean": 0.5,
            "reward/min": 0,
            "reward/max": 1,
            "response_length/mean": 4 / 3,
            "response_length/min": 1,
            "response_length/max": 2,
            "response_length/clip_ratio": 1 / 3,
            "advantage/nonzero": 0.75,
            "staleness/mean": 2,
            "staleness/min": 1,
            "staleness/max": 3,
            "actor/pg_loss": 0.6,
            "actor/grad_norm": 2,
            "actor/lr": 1e-3,
            "actor/mismatch_kl": 0.01,
            "actor/pg_clipfrac": 0.1,
            "critic/vf_loss": 2,
            "critic/grad_norm": 4,
            "critic/lr": 1e-3,
        }
    )


def test_a_skipped_update_leaves_the_others_figures() -> None:
    result = PolicyStepResult(actor=[update(math.nan, math.nan), update(0.5, 2.0)])
    figures = step_figures([prompt(0.0, age=0)], result)
    assert (figures["actor/pg_loss"], figures["actor/grad_norm"]) == (0.5, 2.0)
    result = PolicyStepResult(actor=[update(math.nan, math.nan)])
    assert "actor/pg_loss" not in step_figures([prompt(0.0, age=0)], result)


def test_without_tokens_of_the_same_weights_there_is_no_mismatch() -> None:
    old = update(0.5, 2.0, same_version=0.0, mismatch_kl=0.0, mismatch_ratio=1.0)
    figures = step_figures([prompt(0.0, age=2)], PolicyStepResult(actor=[old]))
    assert figures["actor/same_version"] == 0
    assert not [name for name in figures if "mismatch" in name]


def test_roles_that_rested_have_no_figures() -> None:
    assert step_figures([], PolicyStepResult()) == {}


def test_the_idle_share_is_both_waits_of_the_step() -> None:
    times = StepTimes(step=8.0, wait_for_batch=1.0, wait_for_policy=3.0, train=2.0)
    figures = times.figures(tokens=40)
    assert figures["trainer/idle_ratio"] == 0.5
    assert figures["perf/tokens_per_second"] == 5


def test_a_version_took_the_time_until_all_have_it_and_then_until_they_serve_it() -> None:
    version = Version(Lineage(1, 1), 0)
    sent = Publication(version, 2, 800, stage_seconds=0.5, commit_seconds=0.25, delta=False)
    assert publication_figures(sent) == {
        "timing_s/param_sync": 0.75,
        "timing_s/stage": 0.5,
        "timing_s/commit": 0.25,
        "weight_sync/bytes": 800,
    }


def test_an_answer_has_passed_from_the_reward_of_the_setting_on() -> None:
    held_out = DataConfig((DataSource("builtin:reverse"),))
    evaluation = EvaluationConfig(1, held_out, pass_at=(1, 2), pass_reward=0.5)
    figures = evaluation_figures([(0.5, 0.25), (0.75, 0.5)], evaluation)
    assert figures == {"eval/reward/mean": 0.5, "eval/pass@1": 0.75, "eval/pass@2": 1}


@pytest.mark.parametrize("samples", [1, 4, 6])
def test_pass_at_k_is_the_share_of_choices_with_a_right_sample(samples: int) -> None:
    for passed in range(samples + 1):
        right = [True] * passed + [False] * (samples - passed)
        for k in range(1, samples + 1):
            choices = list(combinations(right, k))
            expected = sum(any(choice) for choice in choices) / len(choices)
            assert pass_at_k(samples, passed, k) == pytest.approx(expected)


@pytest.mark.parametrize(("samples", "passed", "k"), [(4, 1, 0), (4, 1, 5), (4, 5, 1), (4, -1, 1)])
def test_impossible_numbers_of_samples_are_refused(samples: int, passed: int, k: int) -> None:
    with pytest.raises(ValueError, match=f"pass@{k} needs at least {k} samples"):
        pass_at_k(samples, passed, k)
