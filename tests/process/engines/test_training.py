"""An engine trains as plain PyTorch does in one process: losses, gradients, clipping, schedule."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from rollcall_protocol.train_settings import EngineSettings
from tests.process.engines import meshes
from tests.process.engines.engine_on_ranks import (
    SHOWS_GRADIENTS,
    EngineOnRanks,
    Model,
    assert_equal_bits,
    both_models,
)
from tests.process.engines.reference import Reference
from tests.process.engines.suite_batches import Rows
from tests.process.engines.suite_losses import LOSSES
from tests.process.engines.tiny_models import Architecture

STEPS = 5
CLOSE = 1e-5
ROUNDED = 2e-2  # of the norm of a gradient in bf16, and of a loss
GRADIENT_SETTINGS = EngineSettings(**SHOWS_GRADIENTS)


@pytest.mark.meshes(*meshes.ALL)
@pytest.mark.parametrize("kind", ["qwen3", "llama"])
def test_the_loss_and_every_gradient_of_five_steps_are_the_references(
    engine: EngineOnRanks, model: Model, kind: Architecture
) -> None:
    engine.open(model(kind), learning_rate=0.1, **SHOWS_GRADIENTS)
    reference = Reference(model(kind), settings=GRADIENT_SETTINGS, learning_rate=0.1)
    for step in range(STEPS):
        loss = ("token mean", "row mean")[step % 2]
        rows = Rows(step)
        want = reference.forward_backward(rows.whole(), LOSSES[loss])
        got = engine.forward_backward(rows, loss=loss)
        assert got["loss"] == pytest.approx(want.loss, abs=CLOSE)
        assert_close_gradients(engine.gradients_there_are(), stepped_gradients(reference))


@pytest.mark.meshes(*meshes.ALL)
@both_models
def test_five_steps_of_adamw_report_the_references_figures(
    engine: EngineOnRanks, model: Model, kind: Architecture
) -> None:
    settings = EngineSettings(weight_decay=0.1, beta2=0.95)
    engine.open(model(kind), weight_decay=0.1, beta2=0.95)
    reference = Reference(model(kind), settings=settings)
    for step in range(STEPS):
        got = engine.train(Rows(step))
        want = reference.forward_backward(Rows(step).whole(), LOSSES["token mean"])
        taken = reference.optimizer_step()
        reference.zero_grad()
        assert got["loss"] == pytest.approx(want.loss, abs=CLOSE)
        assert got["tokens"] == want.tokens
        assert got["denominator"] == want.denominator
        assert got["metrics"] == pytest.approx(dict(want.metrics), abs=CLOSE)
        assert got["gradient_norm"] == pytest.approx(taken.gradient_norm, rel=1e-4)
        assert got["learning_rate"] == taken.learning_rate
        assert got["skipped"] == ""
    for name, weight in engine.weights().items():
        # Adam divides by the size of the gradient: where that is tiny, so are differences' reasons.
        torch.testing.assert_close(weight, reference.weights[name], atol=2e-4, rtol=0)


@pytest.mark.meshes(*meshes.ALL)
@both_models
def test_bf16_computes_as_a_bf16_copy_of_the_weights_does(
    engine: EngineOnRanks, model: Model, kind: Architecture
) -> None:
    engine.open(model(kind), learning_rate=0.1, precision="bf16", **SHOWS_GRADIENTS)
    parts = engine.mesh.settings.get("tensor_parallel", 1)
    settings = replace(GRADIENT_SETTINGS, precision="bf16", tensor_parallel=parts)
    references = {
        rounds_once: Reference(model(kind), settings=settings, rounds_once=rounds_once)
        for rounds_once in (False, True)
    }
    differences: dict[bool, dict[str, float]] = {rounds_once: {} for rounds_once in references}
    for step in range(STEPS):
        weights, rows = engine.weights(), Rows(step)
        got = engine.forward_backward(rows)
        gradients = engine.gradients_there_are()
        for rounds_once, reference in references.items():
            # Else weights that differ in float32 would be other numbers in bf16.
            reference.take_weights(weights)
            want = reference.forward_backward(rows.whole(), LOSSES["token mean"])
            found = differences[rounds_once]
            found[f"loss {step}"] = abs(got["loss"] / want.loss - 1)
            for name, gradient in stepped_gradients(reference).items():
                found[f"{name} {step}"] = relative_difference(gradients[name], gradient)
    nearest = min(differences.values(), key=lambda found: max(found.values()))
    assert {name: size for name, size in nearest.items() if size >= ROUNDED} == {}


@pytest.mark.meshes(*meshes.ALL)
@both_models
def test_gradients_are_clipped_by_the_norm_of_all_ranks(
    engine: EngineOnRanks, model: Model, kind: Architecture
) -> None:
    clipped = {**SHOWS_GRADIENTS, "max_gradient_norm": 0.05}
    engine.open(model(kind), learning_rate=0.1, **clipped)
    settings = EngineSettings(**clipped)
    reference = Reference(model(kind), settings=settings, learning_rate=0.1)
    got = engine.gradients(Rows(1))
    assert_close_gradients(got, reference_gradients(reference, Rows(1), "token mean"))
    norm = torch.stack([gradient.norm() for gradient in got.values()]).norm()
    assert float(norm) == pytest.approx(0.05, rel=1e-3)


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        ({"schedule": "constant"}, [0.5, 1.0, 1.0, 1.0, 1.0, 1.0]),
        ({"schedule": "linear", "decay_steps": 4}, [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]),
        (
            {"schedule": "cosine", "decay_steps": 2, "min_learning_rate": 0.1},
            [0.5, 1.0, 1.0, 0.55, 0.1, 0.1],
        ),
    ],
)
@pytest.mark.meshes(meshes.DP2)
@both_models
def test_the_learning_rate_grows_and_falls_as_the_schedule_says(
    engine: EngineOnRanks,
    model: Model,
    kind: Architecture,
    schedule: dict[str, Any],
    rates: list[float],
) -> None:
    engine.open(model(kind), warmup_steps=2, **schedule)
    settings = EngineSettings(warmup_steps=2, **schedule)
    reference = Reference(model(kind), settings=settings)
    for step, rate in enumerate(rates):
        (announced, *_) = engine.ranks.do("learning_rate")
        got = engine.train(Rows(step))
        want = reference.forward_backward(Rows(step).whole(), LOSSES["token mean"])
        reference.optimizer_step()
        reference.zero_grad()
        assert announced == got["learning_rate"] == pytest.approx(1e-3 * rate)
        assert got["loss"] == pytest.approx(want.loss, abs=CLOSE)


def test_a_step_that_is_not_finite_changes_nothing_and_says_so(
    engine: EngineOnRanks, model: Model
) -> None:
    engine.open(model("qwen3"))
    before = engine.weights()
    assert engine.train(Rows(1), loss="not finite")["skipped"] == "not-finite"
    assert_equal_bits(engine.weights(), before)
    reference = Reference(model("qwen3"))
    want = reference.forward_backward(Rows(1).whole(), LOSSES["token mean"])
    norm = reference.optimizer_step().gradient_norm
    got = engine.train(Rows(1))  # no gradient is left over
    assert got["loss"] == pytest.approx(want.loss, abs=CLOSE)
    assert got["gradient_norm"] == pytest.approx(norm, rel=1e-4)
    assert got["skipped"] == ""


def test_where_nothing_is_to_be_learnt_weights_and_optimizer_stay(
    engine: EngineOnRanks, model: Model
) -> None:
    engine.open(model("qwen3"), warmup_steps=4)
    engine.train(Rows(1))
    (rate, *_) = engine.ranks.do("learning_rate")
    before = engine.weights()
    for _ in range(3):
        result = engine.train(Rows(2), loss="nothing to learn")
        assert (result["skipped"], result["gradient_norm"]) == ("no-gradient", 0)
    assert_equal_bits(engine.weights(), before)
    assert engine.ranks.do("learning_rate")[0] == rate
    engine.train(Rows(3))
    after = engine.weights()
    engine.close()
    engine.open(model("qwen3"), warmup_steps=4)
    engine.train(Rows(1))
    engine.train(Rows(3))
    assert_equal_bits(engine.weights(), after)


def test_inference_between_gradient_and_step_is_of_the_weights_at_that_time(
    engine: EngineOnRanks, model: Model
) -> None:
    engine.open(model("qwen3"))
    for step in range(2):
        engine.train(Rows(step))
    expected, before = engine.weights(), engine.forward(Rows(5))
    engine.close()
    engine.open(model("qwen3"))
    engine.train(Rows(0))
    engine.forward_backward(Rows(1))
    engine.forward(Rows(5))  # must leave neither gradients nor gathered weights behind
    engine.optimizer_step()
    assert_equal_bits(engine.forward(Rows(5)), before)
    assert_equal_bits(engine.weights(), expected)


def test_a_second_engine_on_the_same_ranks_keeps_its_own_weights(
    engine: EngineOnRanks, model: Model
) -> None:
    engine.open(model("qwen3"))
    engine.open(model("qwen3"), learning_rate=None, name="frozen")
    first = engine.forward(Rows(5), name="frozen")
    expected = engine.forward(Rows(5))
    engine.train(Rows(1))
    assert_equal_bits(engine.forward(Rows(5), name="frozen"), first)
    assert_equal_bits(first, expected)
    assert not torch.equal(engine.forward(Rows(5))["logprobs"], first["logprobs"])


def relative_difference(got: Tensor, want: Tensor) -> float:
    return float((got - want).norm() / want.norm())


def reference_gradients(reference: Reference, rows: Rows, loss: str) -> dict[str, Tensor]:
    """Of one step, as the optimizer used them."""
    reference.forward_backward(rows.whole(), LOSSES[loss])
    return stepped_gradients(reference)


def stepped_gradients(reference: Reference) -> dict[str, Tensor]:
    """Make the reference's step; the gradients that it used."""
    reference.optimizer_step()
    found = {name: gradient.clone() for name, gradient in reference.gradients.items()}
    reference.zero_grad()
    return found


def assert_close_gradients(got: dict[str, Tensor], want: dict[str, Tensor]) -> None:
    assert got.keys() == want.keys()
    for name, gradient in want.items():
        torch.testing.assert_close(got[name], gradient, atol=CLOSE, rtol=0, msg=name)
        # Reading a gradient from two versions of a weight near 1 adds up to 1e-7 to each number.
        allowed = 1e-3 * float(gradient.norm()) + 1e-6
        assert float((got[name] - gradient).norm()) <= allowed, name
