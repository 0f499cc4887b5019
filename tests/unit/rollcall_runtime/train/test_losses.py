"""The losses against their formulas, written out for single tokens."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn.functional import pad

from rollcall_protocol.job_config import LossConfig
from rollcall_runtime.train.losses import PolicyLoss, policy_loss
from rollcall_runtime.train.train_batch import TrainBatch
from rollcall_runtime.train.train_loss import LossSums, ModelOutput
from rollcall_runtime.worker.errors import SpecError
from tests.unit.rollcall_runtime.train.batches import random_batch


def loss_of(kind: str, *, clip: float = 0.2, cap: float = 5.0) -> PolicyLoss:
    return policy_loss(LossConfig(type=kind, clip=clip, is_cap=cap))


def one_token(
    loss: PolicyLoss,
    *,
    pi: float,
    behave: float,
    advantage: float,
    prox: float | None = None,
) -> tuple[LossSums, float]:
    """The loss of a single token, given probabilities, and its gradient by log pi."""
    logprobs = torch.tensor([[math.log(pi)]], requires_grad=True)
    extras = {
        "advantages": torch.tensor([advantage]),
        "behaviour_logprobs": torch.tensor([[math.log(behave)]]),
    }
    if prox is not None:
        extras["proximal_logprobs"] = torch.tensor([[math.log(prox)]])
    batch = TrainBatch(
        tokens=torch.zeros(1, 1, dtype=torch.int64),
        targets=torch.zeros(1, 1, dtype=torch.int64),
        mask=torch.ones(1, 1, dtype=torch.bool),
        lengths=torch.ones(1, dtype=torch.int64),
        extras=extras,
    )
    sums = loss(ModelOutput(logprobs=logprobs), batch)
    sums.loss.backward()  # type: ignore[no-untyped-call]
    assert logprobs.grad is not None
    return sums, float(logprobs.grad)


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
    sums, found = one_token(
        loss_of("decoupled"), pi=pi, prox=prox, behave=behave, advantage=advantage
    )
    assert float(sums.loss.detach()) == pytest.approx(loss, rel=1e-5)
    assert found == pytest.approx(gradient, rel=1e-5)


@pytest.mark.parametrize(
    ("pi", "behave", "advantage", "weight"), [(0.4, 0.2, 1.5, 2.0), (0.9, 0.1, -1.0, 5.0)]
)
def test_tis(pi: float, behave: float, advantage: float, weight: float) -> None:
    sums, gradient = one_token(loss_of("tis"), pi=pi, behave=behave, advantage=advantage)
    assert float(sums.loss.detach()) == pytest.approx(-weight * advantage * math.log(pi), rel=1e-5)
    assert gradient == pytest.approx(-weight * advantage, rel=1e-5)


@pytest.mark.parametrize(
    ("pi", "behave", "advantage", "loss", "gradient"),
    [(0.22, 0.2, 1.0, -1.1, -1.1), (0.4, 0.2, 1.0, -1.2, 0.0), (0.4, 0.2, -1.0, 2.0, 2.0)],
)
def test_grpo(pi: float, behave: float, advantage: float, loss: float, gradient: float) -> None:
    sums, found = one_token(loss_of("grpo"), pi=pi, behave=behave, advantage=advantage)
    assert float(sums.loss.detach()) == pytest.approx(loss, rel=1e-5)
    assert found == pytest.approx(gradient, rel=1e-5)


def sums_of(loss: PolicyLoss, batch: TrainBatch, logprobs: Tensor) -> LossSums:
    return loss(ModelOutput(logprobs=logprobs), batch)


def gradients(loss: PolicyLoss, batch: TrainBatch, logprobs: Tensor) -> Tensor:
    logprobs = logprobs.clone().requires_grad_()
    loss(ModelOutput(logprobs=logprobs), batch).loss.backward()  # type: ignore[no-untyped-call]
    assert logprobs.grad is not None
    return logprobs.grad


def test_with_one_update_decoupled_and_tis_learn_the_same_and_the_clip_rests() -> None:
    batch = random_batch(seed=3)
    behaviour = batch.extras["behaviour_logprobs"]
    logprobs = behaviour + torch.linspace(-3, 3, behaviour.numel()).view_as(behaviour)
    decoupled, tis = (gradients(loss_of(kind), batch, logprobs) for kind in ("decoupled", "tis"))
    torch.testing.assert_close(decoupled, tis)
    metrics = loss_of("decoupled")(ModelOutput(logprobs=logprobs), batch).metrics
    assert float(metrics["clipped"][0]) == 0
    assert float(metrics["capped"][0]) > 0


def test_without_staleness_and_updates_all_losses_learn_the_same() -> None:
    batch = random_batch(seed=4)
    logprobs = batch.extras["behaviour_logprobs"]
    found = [gradients(loss_of(k), batch, logprobs) for k in ("decoupled", "tis", "grpo")]
    torch.testing.assert_close(found[0], found[1])
    torch.testing.assert_close(found[0], found[2])


@pytest.mark.parametrize("kind", ["decoupled", "tis", "grpo"])
@pytest.mark.parametrize("poison", [math.nan, -math.inf, 1e9])
def test_what_lies_outside_the_mask_has_no_say(kind: str, poison: float) -> None:
    batch = random_batch(seed=5)
    behaviour = batch.extras["behaviour_logprobs"]
    batch = batch.with_extras(proximal_logprobs=behaviour - 0.1)
    logprobs = behaviour + 0.05
    loss = loss_of(kind)
    clean, clean_gradient = sums_of(loss, batch, logprobs), gradients(loss, batch, logprobs)
    poisoned = torch.where(batch.mask, logprobs, poison)
    dirty, dirty_gradient = sums_of(loss, batch, poisoned), gradients(loss, batch, poisoned)
    assert torch.equal(clean.loss, dirty.loss)
    assert torch.equal(clean_gradient, dirty_gradient)
    for name, (value, _) in clean.metrics.items():
        assert torch.equal(value, dirty.metrics[name][0])
    assert float(clean_gradient[~batch.mask].abs().sum()) == 0


@pytest.mark.parametrize("kind", ["decoupled", "tis", "grpo"])
def test_padding_changes_no_sum(kind: str) -> None:
    batch = random_batch(seed=5)
    # Advantages whose sum is not 0, so that what padding adds to a loss does not cancel out.
    behaviour = batch.extras["behaviour_logprobs"]
    batch = batch.with_extras(
        advantages=batch.extras["advantages"] + 1, proximal_logprobs=behaviour - 0.1
    )
    wider = TrainBatch(
        tokens=pad(batch.tokens, (0, 3)),
        targets=pad(batch.targets, (0, 3)),
        mask=pad(batch.mask, (0, 3)),
        lengths=batch.lengths,
        extras={
            name: pad(tensor, (0, 3)) if tensor.ndim == 2 else tensor
            for name, tensor in batch.extras.items()
        },
    )
    logprobs = behaviour + 0.05
    found = sums_of(loss_of(kind), batch, logprobs)
    padded = sums_of(loss_of(kind), wider, pad(logprobs, (0, 3)))
    torch.testing.assert_close(padded.loss, found.loss)
    torch.testing.assert_close(dict(padded.metrics), dict(found.metrics))


@pytest.mark.parametrize(
    ("kind", "probabilities", "advantage", "metrics"),
    [
        (
            "decoupled",
            {"pi": 0.6, "prox": 0.4, "behave": 0.2},
            1.0,
            {"ratio": 1.5, "clipped": 1, "weight": 2, "capped": 0, "kl": math.log(0.2 / 0.6)},
        ),
        (
            "decoupled",  # a bad sample is pushed back in full, so the clip does not decide
            {"pi": 0.6, "prox": 0.6, "behave": 0.1},
            -1.0,
            {"ratio": 1, "clipped": 0, "weight": 6, "capped": 1, "kl": math.log(0.1 / 0.6)},
        ),
        (
            "tis",
            {"pi": 0.9, "behave": 0.1},
            1.0,
            {"weight": 9, "capped": 1, "kl": math.log(0.1 / 0.9)},
        ),
        (
            "grpo",
            {"pi": 0.4, "behave": 0.2},
            1.0,
            {"ratio": 2, "clipped": 1, "kl": math.log(0.2 / 0.4)},
        ),
        (
            "grpo",
            {"pi": 0.4, "behave": 0.2},
            -1.0,
            {"ratio": 2, "clipped": 0, "kl": math.log(0.2 / 0.4)},
        ),
    ],
)
def test_metrics(
    kind: str, probabilities: dict[str, float], advantage: float, metrics: dict[str, float]
) -> None:
    sums, _ = one_token(loss_of(kind), advantage=advantage, **probabilities)
    found = {name: float(value / count) for name, (value, count) in sums.metrics.items()}
    assert found == pytest.approx(metrics, rel=1e-5)


@pytest.mark.parametrize("kind", ["decoupled", "tis", "grpo"])
def test_probabilities_of_nothing_stay_finite(kind: str) -> None:
    sums, gradient = one_token(loss_of(kind), pi=1.0, behave=1e-40, prox=0.5, advantage=1.0)
    assert math.isfinite(float(sums.loss.detach()))
    assert math.isfinite(gradient)


Change = Callable[[], PolicyLoss]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: loss_of("ppo"), "loss.type: unknown loss 'ppo'; known: decoupled, grpo, tis"),
        (lambda: loss_of("grpo", clip=0), "loss.clip: 0 is not between 0 and 1"),
        (lambda: loss_of("grpo", clip=math.nan), "loss.clip: nan is not between 0 and 1"),
        (lambda: loss_of("tis", cap=0.5), "loss.isCap: 0.5 is below 1"),
        (lambda: loss_of("tis", cap=math.nan), "loss.isCap: nan is below 1"),
    ],
)
def test_a_wrong_loss_names_its_field(make: Change, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        make()
    assert str(caught.value) == f"spec.algorithm.{message}"
