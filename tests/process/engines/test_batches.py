"""However a batch is cut, packed or spread over ranks, the result is that of the whole one."""

from typing import Any

import pytest
import torch

from tests.process.engines import meshes
from tests.process.engines.engine_on_ranks import (
    ONE_STEP_RATE,
    SHOWS_ONE_GRADIENT,
    EngineOnRanks,
    Model,
    both_models,
)
from tests.process.engines.reference import Reference
from tests.process.engines.suite_batches import Rows
from tests.process.engines.suite_losses import LOSSES
from tests.process.engines.tiny_models import Architecture

CLOSE = 1e-6
ROWS = Rows(7)
CUTS: dict[str, dict[str, Any]] = {
    "micro-batches": {"max_tokens_per_microbatch": 40},
    "one row at a time": {"max_tokens_per_microbatch": 1},
    "packed": {"packing": True},
    "packed micro-batches": {"packing": True, "max_tokens_per_microbatch": 40},
    "chunks of the vocabulary's logits": {"logprob_chunk": 5},
    "packed chunks": {"packing": True, "logprob_chunk": 5},
}


@pytest.mark.meshes(meshes.ONE, meshes.DP2, meshes.TP2, meshes.CP2)
@pytest.mark.parametrize("cut", CUTS)
@both_models
def test_the_gradient_is_that_of_the_whole_padded_batch(
    engine: EngineOnRanks, model: Model, kind: Architecture, cut: str
) -> None:
    engine.open(model(kind), learning_rate=ONE_STEP_RATE, **SHOWS_ONE_GRADIENT, **CUTS[cut])
    reference = Reference(model(kind))
    want = reference.forward_backward(ROWS.whole(), LOSSES["row mean"])
    result = engine.forward_backward(ROWS, loss="row mean")
    assert result["loss"] == pytest.approx(want.loss, rel=CLOSE)
    assert result["tokens"] == want.tokens
    assert result["metrics"] == pytest.approx(dict(want.metrics), rel=CLOSE)
    assert_gradients(engine, reference)


@pytest.mark.meshes(meshes.ONE, meshes.DP2, meshes.TP2, meshes.CP2)
@pytest.mark.parametrize("cut", ["whole", *CUTS])
def test_inference_gives_each_row_what_the_reference_gives(
    engine: EngineOnRanks, model: Model, cut: str
) -> None:
    engine.open(model("qwen3"), learning_rate=None, **CUTS.get(cut, {}))
    with torch.no_grad():
        output = Reference(model("qwen3")).outputs(ROWS.whole())
    found = engine.forward(ROWS)
    assert found.keys() == {"logprobs", "entropy"}
    for name, tensor in found.items():
        expected = getattr(output, name).masked_fill(~ROWS.whole().mask, 0)
        torch.testing.assert_close(tensor, expected, atol=1e-5, rtol=0)


@pytest.mark.meshes(meshes.ONE, meshes.DP2, meshes.TP2, meshes.CP2)
def test_the_temperature_divides_the_logits(engine: EngineOnRanks, model: Model) -> None:
    engine.open(model("qwen3"), learning_rate=ONE_STEP_RATE, temperature=0.7, **SHOWS_ONE_GRADIENT)
    reference = Reference(model("qwen3"), temperature=0.7)
    with torch.no_grad():
        output = reference.outputs(ROWS.whole())
    for name, tensor in engine.forward(ROWS).items():
        expected = getattr(output, name).masked_fill(~ROWS.whole().mask, 0)
        torch.testing.assert_close(tensor, expected, atol=1e-5, rtol=0)
    want = reference.forward_backward(ROWS.whole(), LOSSES["row mean"])
    result = engine.forward_backward(ROWS, loss="row mean")
    assert result["loss"] == pytest.approx(want.loss, rel=CLOSE)
    assert_gradients(engine, reference)


@pytest.mark.meshes(*meshes.ALL)
@both_models
def test_gradients_of_two_batches_add_up_each_by_its_own_denominator(
    engine: EngineOnRanks, model: Model, kind: Architecture
) -> None:
    engine.open(model(kind), learning_rate=ONE_STEP_RATE, **SHOWS_ONE_GRADIENT)
    reference = Reference(model(kind))
    for rows, loss in ((Rows(1, count=3), "token mean"), (Rows(2, count=12), "row mean")):
        got = engine.forward_backward(rows, loss=loss)
        want = reference.forward_backward(rows.whole(), LOSSES[loss])
        assert got["loss"] == pytest.approx(want.loss, abs=1e-5)
    assert_gradients(engine, reference)


@pytest.mark.meshes(meshes.DP2, meshes.DP4, meshes.DP2_TP2, meshes.CP2, meshes.DP2_CP2)
@pytest.mark.parametrize("cut", ["whole", "one row at a time", "packed"])
def test_ranks_without_rows_take_part(engine: EngineOnRanks, model: Model, cut: str) -> None:
    engine.open(
        model("qwen3"), learning_rate=ONE_STEP_RATE, **SHOWS_ONE_GRADIENT, **CUTS.get(cut, {})
    )
    reference = Reference(model("qwen3"))
    alone = Rows(3, count=1)
    got = engine.forward_backward(alone, loss="row mean")
    want = reference.forward_backward(alone.whole(), LOSSES["row mean"])
    assert got["loss"] == pytest.approx(want.loss, abs=1e-5)
    assert got["tokens"] == want.tokens
    assert_gradients(engine, reference)
    assert engine.forward(alone)["logprobs"].shape == alone.whole().tokens.shape


@pytest.mark.meshes(meshes.DP2)
def test_forgotten_gradients_do_not_count(engine: EngineOnRanks, model: Model) -> None:
    engine.open(model("qwen3"), learning_rate=ONE_STEP_RATE, **SHOWS_ONE_GRADIENT)
    engine.forward_backward(Rows(1))
    engine.ranks.do("zero_grad")
    engine.forward_backward(Rows(2))
    reference = Reference(model("qwen3"))
    reference.forward_backward(Rows(2).whole(), LOSSES["token mean"])
    assert_gradients(engine, reference)


@pytest.mark.meshes(*meshes.ALL)
def test_the_ranks_share_out_all_rows(engine: EngineOnRanks, model: Model) -> None:
    engine.open(model("qwen3"), learning_rate=None)
    places = engine.places()
    sizes = {place["data_parallel_size"] for place in places}
    (size,) = sizes
    split = engine.mesh.settings
    parts = split.get("tensor_parallel", 1) * split.get("context_parallel", 1)
    assert size * parts == engine.mesh.world
    ranks = sorted(place["data_parallel_rank"] for place in places)
    assert ranks == sorted(list(range(size)) * parts)


def assert_gradients(engine: EngineOnRanks, reference: Reference) -> None:
    """Neither has made a step with its gradients. They are 1e-6 apart, or 1e-6 of the largest.

    Beside a gradient of 2 the numbers of float32 are 2e-7 apart.
    """
    found = engine.gradients_there_are(rate=ONE_STEP_RATE)
    assert found.keys() == reference.gradients.keys()
    for name, gradient in reference.gradients.items():
        allowed = CLOSE * max(1.0, float(gradient.abs().max()))
        torch.testing.assert_close(found[name], gradient, atol=allowed, rtol=0, msg=name)
