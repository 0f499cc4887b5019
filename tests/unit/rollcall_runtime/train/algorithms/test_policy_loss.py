"""Every composition of the policy's loss equals plain loops over the papers' formulas."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from rollcall_protocol.algorithm_settings import PRESETS, AlgorithmSettings, preset
from rollcall_runtime.train.algorithms.policy_loss import PolicyLoss
from rollcall_runtime.train.train_batch import TrainBatch
from rollcall_runtime.train.train_loss import LossSums, ModelOutput
from tests.unit.rollcall_runtime.train.algorithms.plain_policy_loss import (
    PlainRow,
    model_output,
    plain_policy_loss,
    random_rows,
    train_batch,
)


def loss_and_gradient(
    rows: Sequence[PlainRow], settings: AlgorithmSettings
) -> tuple[float, Tensor, LossSums]:
    """As an engine computes them: the sum divided by the denominator."""
    batch = train_batch(rows)
    output, loss = model_output(rows, batch), PolicyLoss(settings)
    sums = loss(output, batch)
    value = sums.loss / loss.denominator(batch)
    assert output.logprobs is not None
    (gradient,) = torch.autograd.grad(value, output.logprobs)
    return float(value.detach()), gradient, sums


def one_token(
    settings: AlgorithmSettings,
    *,
    pi: float,
    behave: float,
    advantage: float,
    prox: float | None = None,
) -> tuple[float, float, LossSums]:
    """Loss and gradient by log pi of a single token of these probabilities, and its figures."""
    row = PlainRow(
        policy=[math.log(pi)],
        proximal=[math.log(prox or pi)],
        behaviour=[math.log(behave)],
        reference=[math.log(pi)],
        entropy=[0.0],
        advantages=[advantage],
    )
    value, gradient, sums = loss_and_gradient([row], settings)
    return value, float(gradient.sum()), sums


# --- against plain loops -------------------------------------------------------------------------

COMPOSITIONS: list[dict[str, Any]] = [
    *(dict(PRESETS[name]) for name in PRESETS),
    {"objective": "policy-gradient"},
    {"ratio_base": "behaviour", "correction": "none"},
    {"clip_low": 0.1, "clip_high": 0.4, "dual_clip": 1.2},
    {"entropy_coefficient": 0.3},
    *({"kl_coefficient": 0.7, "kl_estimator": kind} for kind in ("k1", "k2", "k3")),
    *(
        {"correction": c, "correction_level": level, "correction_cap": 1.3, "correction_floor": 0.7}
        for c, level in itertools.product(("truncated", "masked"), ("token", "sequence"))
    ),
    {"aggregation": "sequence-mean"},
    {"aggregation": "sequence-sum", "aggregation_length": 6},
]


@pytest.mark.parametrize("changes", COMPOSITIONS, ids=str)
def test_a_loss_equals_the_plain_one(changes: dict[str, Any]) -> None:
    settings = AlgorithmSettings(**changes)
    for seed in range(3):
        rows = random_rows(seed=seed)
        found, _, _ = loss_and_gradient(rows, settings)
        assert found == pytest.approx(plain_policy_loss(rows, settings), rel=1e-5, abs=1e-6)


def test_tokens_may_have_advantages_of_their_own_or_share_their_sequences() -> None:
    rows = random_rows(seed=1)
    batch = train_batch(rows)
    shared = batch.with_extras(advantages=torch.tensor([row.advantages[0] for row in rows]))
    loss, output = PolicyLoss(AlgorithmSettings()), model_output(rows, batch)
    torch.testing.assert_close(loss(output, batch).loss, loss(output, shared).loss)


@pytest.mark.parametrize("name", ["ppo", "reinforce++"])
def test_a_divergence_that_the_reward_has_is_not_in_the_loss_as_well(name: str) -> None:
    rows = random_rows(seed=2)
    found, _, sums = loss_and_gradient(rows, preset(name, kl_coefficient=0.7))
    assert found == loss_and_gradient(rows, preset(name))[0]
    assert "kl_loss" not in sums.metrics


# --- written out for single tokens ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("pi", "prox", "behave", "advantage", "loss", "gradient"),
    [
        # r = 1.1, w = 2: -r A w, gradient the same
        (0.44, 0.4, 0.2, 1.0, -2.2, -2.2),
        # r = 1.5 above the clip with a good sample: held at 1.2, nothing more to learn
        (0.6, 0.4, 0.2, 1.0, -2.4, 0.0),
        # r = 1.5 above the clip with a bad sample: pushed back in full
        (0.6, 0.4, 0.2, -1.0, 3.0, 3.0),
        # r = 0.5 below the clip with a bad sample: held at 0.8
        (0.2, 0.4, 0.4, -1.0, 0.8, 0.0),
        # w = 8 is capped at 5
        (0.8, 0.8, 0.1, 1.0, -5.0, -5.0),
    ],
)
def test_decoupled(
    pi: float, prox: float, behave: float, advantage: float, loss: float, gradient: float
) -> None:
    found = one_token(AlgorithmSettings(), pi=pi, prox=prox, behave=behave, advantage=advantage)
    assert found[:2] == pytest.approx((loss, gradient), rel=1e-5)


@pytest.mark.parametrize(
    ("pi", "behave", "advantage", "weight"), [(0.4, 0.2, 1.5, 2.0), (0.9, 0.1, -1.0, 5.0)]
)
def test_truncated_importance_sampling(
    pi: float, behave: float, advantage: float, weight: float
) -> None:
    settings = AlgorithmSettings(objective="policy-gradient")
    loss, gradient, _ = one_token(settings, pi=pi, behave=behave, advantage=advantage)
    assert loss == pytest.approx(-weight * advantage * math.log(pi), rel=1e-5)
    assert gradient == pytest.approx(-weight * advantage, rel=1e-5)


@pytest.mark.parametrize(
    ("pi", "behave", "advantage", "loss", "gradient"),
    [(0.22, 0.2, 1.0, -1.1, -1.1), (0.4, 0.2, 1.0, -1.2, 0.0), (0.4, 0.2, -1.0, 2.0, 2.0)],
)
def test_a_ratio_to_the_behaviour_policy(
    pi: float, behave: float, advantage: float, loss: float, gradient: float
) -> None:
    settings = AlgorithmSettings(ratio_base="behaviour", correction="none")
    found = one_token(settings, pi=pi, behave=behave, advantage=advantage)
    assert found[:2] == pytest.approx((loss, gradient), rel=1e-5)


def test_clip_higher_lets_a_good_token_grow_further() -> None:
    token = {"pi": 0.5, "prox": 0.4, "behave": 0.4, "advantage": 1.0}  # r = 1.25
    assert one_token(AlgorithmSettings(), **token)[1] == 0
    assert one_token(AlgorithmSettings(clip_high=0.28), **token)[1] == pytest.approx(-1.25)


def test_dual_clip_bounds_what_a_bad_token_costs() -> None:
    token = {"pi": 0.8, "prox": 0.1, "behave": 0.1, "advantage": -1.0}  # r = 8
    assert one_token(AlgorithmSettings(), **token)[:2] == pytest.approx((8, 8), rel=1e-5)
    assert one_token(AlgorithmSettings(dual_clip=3.0), **token)[:2] == pytest.approx((3, 0))


def test_cispo_learns_from_tokens_that_ppo_clips_away() -> None:
    token = {"pi": 0.8, "behave": 0.1, "advantage": 1.0}  # r = 8, held at 1 + 4
    assert one_token(preset("cispo"), **token)[1] == pytest.approx(-5)
    same: dict[str, Any] = {"ratio_base": "behaviour", "correction": "none"}
    assert one_token(AlgorithmSettings(clip_high=4.0, **same), **token)[1] == 0


def test_gspo_clips_a_sequence_by_the_geometric_mean_of_its_ratios() -> None:
    def row(logs: list[float], advantage: float) -> PlainRow:
        zeros = [0.0] * len(logs)
        return PlainRow(logs, zeros, zeros, zeros, zeros, [advantage] * len(logs))

    settings = AlgorithmSettings(objective="gspo", aggregation="sequence-mean")
    # Mean log-ratio 0.1: below log 1.2, so both tokens learn alike, though one has r = 1.35.
    loss, gradient, _ = loss_and_gradient([row([0.3, -0.1], 1.0)], settings)
    assert loss == pytest.approx(-math.exp(0.1), rel=1e-5)
    assert gradient[0, -2:].tolist() == pytest.approx([-math.exp(0.1) / 2] * 2, rel=1e-5)
    # Mean log-ratio 0.2: above log 1.2, and neither learns.
    loss, gradient, _ = loss_and_gradient([row([0.3, 0.1], 1.0)], settings)
    assert loss == pytest.approx(-1.2, rel=1e-5)
    assert float(gradient.abs().sum()) == 0


def test_masked_sampling_leaves_out_what_is_too_far_off() -> None:
    settings = AlgorithmSettings(correction="masked", correction_cap=2.0, correction_floor=0.5)
    for behave, learns in [(0.4, True), (0.25, True), (0.15, False), (0.9, False)]:
        _, gradient, _ = one_token(settings, pi=0.4, prox=0.4, behave=behave, advantage=1.0)
        assert (gradient != 0) is learns


# --- what must hold of all -----------------------------------------------------------------------


def test_with_one_update_decoupled_and_tis_learn_the_same_and_the_clip_rests() -> None:
    rows = [replace(row, proximal=row.policy) for row in random_rows(seed=3, spread=3)]
    _, decoupled, sums = loss_and_gradient(rows, AlgorithmSettings())
    _, tis, _ = loss_and_gradient(rows, AlgorithmSettings(objective="policy-gradient"))
    torch.testing.assert_close(decoupled, tis)
    assert float(sums.metrics["pg_clipfrac"][0]) == 0
    assert float(sums.metrics["is_capped"][0]) > 0


def test_without_staleness_and_updates_token_objectives_learn_the_same() -> None:
    rows = [replace(row, proximal=row.policy, behaviour=row.policy) for row in random_rows(seed=4)]
    others = [
        AlgorithmSettings(objective="policy-gradient"),
        AlgorithmSettings(ratio_base="behaviour", correction="none"),
        preset("cispo"),
    ]
    _, expected, _ = loss_and_gradient(rows, AlgorithmSettings())
    for settings in others:
        torch.testing.assert_close(loss_and_gradient(rows, settings)[1], expected)


def test_without_proximal_log_probabilities_the_policy_is_the_proximal_one() -> None:
    rows = [replace(row, proximal=row.policy) for row in random_rows(seed=5)]
    batch = train_batch(rows)
    without = replace(
        batch, extras={k: v for k, v in batch.extras.items() if k != "proximal_logprobs"}
    )
    loss, output = PolicyLoss(AlgorithmSettings()), model_output(rows, batch)
    torch.testing.assert_close(loss(output, without).loss, loss(output, batch).loss)


@pytest.mark.parametrize("changes", COMPOSITIONS, ids=str)
@pytest.mark.parametrize("poison", [math.nan, -math.inf, 1e9])
def test_what_lies_outside_the_mask_has_no_say(changes: dict[str, Any], poison: float) -> None:
    rows = random_rows(seed=5)
    batch = train_batch(rows)
    loss, clean = PolicyLoss(AlgorithmSettings(**changes)), model_output(rows, batch)
    assert clean.logprobs is not None
    dirty = ModelOutput(
        logprobs=torch.where(batch.mask, clean.logprobs.detach(), poison).requires_grad_(),
        entropy=torch.where(batch.mask, clean.entropy, poison)
        if clean.entropy is not None
        else None,
    )
    expected, found = loss(clean, batch), loss(dirty, batch)
    assert torch.equal(expected.loss, found.loss)
    assert dict(expected.metrics) == dict(found.metrics)
    assert dict(expected.maxima) == dict(found.maxima)
    assert dirty.logprobs is not None
    (gradient,) = torch.autograd.grad(found.loss, dirty.logprobs)
    assert float(gradient[~batch.mask].abs().sum()) == 0
    assert bool(gradient.isfinite().all())


@pytest.mark.parametrize("changes", COMPOSITIONS, ids=str)
def test_micro_batches_add_up(changes: dict[str, Any]) -> None:
    rows = random_rows(seed=7)
    loss = PolicyLoss(AlgorithmSettings(**changes))

    def summed(batch: TrainBatch, part: Sequence[PlainRow]) -> tuple[float, float]:
        sums = loss(model_output(part, batch), batch)
        return float(sums.loss.detach()), float(loss.denominator(batch))

    whole, batch = summed(train_batch(rows), rows), train_batch(rows)
    parts = [summed(batch.select([at]), [row]) for at, row in enumerate(rows)]
    assert [sum(column) for column in zip(*parts, strict=True)] == pytest.approx(whole, rel=1e-5)


def test_an_empty_micro_batch_adds_nothing() -> None:
    batch = train_batch(random_rows(seed=8)).select([])
    loss = PolicyLoss(AlgorithmSettings())
    sums = loss(ModelOutput(logprobs=torch.zeros(0, 0, requires_grad=True)), batch)
    assert float(sums.loss.detach()) == float(loss.denominator(batch)) == 0
    assert float(sums.maxima["mismatch_ratio"]) == 1


@pytest.mark.parametrize("changes", COMPOSITIONS, ids=str)
def test_probabilities_of_nothing_stay_finite(changes: dict[str, Any]) -> None:
    settings = AlgorithmSettings(**changes)
    for pi, behave in [(1.0, 1e-40), (1e-40, 1.0)]:
        value, gradient, _ = one_token(settings, pi=pi, behave=behave, prox=0.5, advantage=1.0)
        assert math.isfinite(value)
        assert math.isfinite(gradient)


# --- figures -------------------------------------------------------------------------------------


def test_metrics_have_the_fields_names() -> None:
    settings = AlgorithmSettings(kl_coefficient=0.1, entropy_coefficient=0.1)
    _, _, sums = one_token(settings, pi=0.6, prox=0.4, behave=0.2, advantage=1.0)
    found = {name: float(total / count) for name, (total, count) in sums.metrics.items()}
    assert found == pytest.approx(
        {
            "ratio": 1.5,
            "pg_clipfrac": 1,
            "is_weight": 2,
            "is_capped": 0,
            "ppo_kl": math.log(0.4 / 0.6),
            "behave_kl": math.log(0.2 / 0.4),
            "same_version": 1,
            "mismatch_kl": 2 - 1 - math.log(2),
            "kl_loss": 0,
            "entropy": 0,
        },
        rel=1e-5,
        abs=1e-7,
    )
    assert float(sums.maxima["mismatch_ratio"]) == pytest.approx(2)


def test_the_figure_of_the_weights_is_of_those_before_the_correction() -> None:
    _, _, sums = one_token(AlgorithmSettings(), pi=0.8, prox=0.8, behave=0.1, advantage=1.0)
    assert float(sums.metrics["is_weight"][0]) == pytest.approx(8), "it is capped at 5"
    assert float(sums.metrics["is_capped"][0]) == 1


def test_the_figure_of_the_divergence_is_without_its_coefficient() -> None:
    rows = random_rows(seed=2)
    _, _, sums = loss_and_gradient(rows, AlgorithmSettings(kl_coefficient=0.1, kl_estimator="k1"))
    gaps = [p - r for row in rows for p, r in zip(row.policy, row.reference, strict=True)]
    total, count = sums.metrics["kl_loss"]
    assert float(total / count) == pytest.approx(sum(gaps) / len(gaps), rel=1e-4)


def test_the_mismatch_counts_tokens_of_the_same_weights_alone() -> None:
    rows = random_rows(seed=9)
    batch = train_batch(rows)
    same = torch.zeros_like(batch.tokens, dtype=torch.float32)
    same[0] = 1
    sums = PolicyLoss(AlgorithmSettings())(
        model_output(rows, batch), batch.with_extras(same_version=same)
    )
    gaps = [p - b for p, b in zip(rows[0].proximal, rows[0].behaviour, strict=True)]
    total, count = sums.metrics["mismatch_kl"]
    assert float(count) == len(gaps)
    assert float(total) == pytest.approx(sum(math.exp(g) - 1 - g for g in gaps), rel=1e-4)
    assert float(sums.maxima["mismatch_ratio"]) == pytest.approx(
        max(math.exp(abs(gap)) for gap in gaps), rel=1e-5
    )


def test_a_model_without_the_right_head_is_refused() -> None:
    batch = train_batch(random_rows(seed=1))
    with pytest.raises(ValueError, match='needs a model with the head "language-model"'):
        PolicyLoss(AlgorithmSettings())(ModelOutput(), batch)
