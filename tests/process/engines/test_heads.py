"""Heads other than the language model's: one value for each position, one score for each row."""

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from tests.process.engines import meshes
from tests.process.engines.engine_on_ranks import (
    SHOWS_GRADIENTS,
    EngineOnRanks,
    Model,
    assert_equal_bits,
)
from tests.process.engines.reference import Reference
from tests.process.engines.suite_batches import Rows
from tests.process.engines.suite_losses import LOSSES

HEADS = [("value", "value", "values"), ("sequence-classification", "score", "scores")]


def of_the_head(weights: Mapping[str, Tensor], base: Mapping[str, Tensor]) -> list[Tensor]:
    """The weight that the head adds to the language model's, and its bias if it has one."""
    found = [weight for name, weight in weights.items() if name not in base]
    return sorted(found, key=lambda weight: -weight.ndim)


@pytest.mark.meshes(meshes.ONE, *meshes.PAIRS, meshes.CP2)
@pytest.mark.parametrize(("head", "loss", "output"), HEADS, ids=[head for head, *_ in HEADS])
@pytest.mark.parametrize("packing", [False, True], ids=["padded", "packed"])
def test_outputs_and_gradients_are_the_references(
    engine: EngineOnRanks, model: Model, head: str, loss: str, output: str, packing: bool
) -> None:
    engine.open(model("qwen3"), head=head, learning_rate=0.1, packing=packing, **SHOWS_GRADIENTS)
    before = engine.weights()
    weights = of_the_head(before, Reference(model("qwen3")).weights)
    assert [weight.shape[0] for weight in weights] in ([1], [1, 1])
    reference = Reference(model("qwen3"), head=weights)
    with torch.no_grad():
        expected = getattr(reference.outputs(Rows(1).whole()), output)
    whole = Rows(1).whole()
    if output == "values":
        expected = expected.masked_fill(~whole.mask, 0)
    found = engine.forward(Rows(1))
    assert found.keys() >= {output}
    torch.testing.assert_close(found[output], expected, atol=1e-5, rtol=0)
    want = reference.forward_backward(whole, LOSSES[loss])
    assert engine.forward_backward(Rows(1), loss=loss)["loss"] == pytest.approx(want.loss, abs=1e-5)
    engine.ranks.do("zero_grad")
    gradients = engine.gradients(Rows(1), loss=loss)
    for name in before.keys() & reference.gradients.keys():
        torch.testing.assert_close(
            gradients[name], reference.gradients[name], atol=1e-5, rtol=0, msg=name
        )


@pytest.mark.meshes(meshes.DP2)
@pytest.mark.parametrize(("head", "loss", "output"), HEADS, ids=[head for head, *_ in HEADS])
def test_the_head_is_learnt_and_saved(
    engine: EngineOnRanks, model: Model, head: str, loss: str, output: str
) -> None:
    engine.open(model("qwen3"), head=head, learning_rate=1e-2)
    losses = [engine.train(Rows(1), loss=loss)["loss"] for _ in range(5)]
    assert losses[-1] < 0.9 * losses[0]
    file = engine.ranks.do("weights")[0]["file"]
    weights = engine.weights()
    engine.close()
    engine.open(model("qwen3"), head=head, learning_rate=None)
    engine.ranks.do("load_weights", file=file)
    assert_equal_bits(engine.weights(), weights)
