"""Pipeline stages and sequence parallelism compute what plain PyTorch does."""

from pathlib import Path
from typing import Any

import pytest
import torch

from rollcall_protocol.train_settings import EngineSettings
from tests.process.engines import meshes
from tests.process.engines.engine_on_ranks import EngineOnRanks, Model, Place, refusal
from tests.process.engines.meshes import Mesh
from tests.process.engines.reference import LEARNING_RATE, Reference
from tests.process.engines.suite_batches import Rows
from tests.process.engines.suite_losses import LOSSES

PP2 = Mesh("PP2", 2, {"pipeline_parallel": 2})
PP2_TP2 = Mesh("PP2xTP2", 4, {"pipeline_parallel": 2, "tensor_parallel": 2})
PP2_DP2 = Mesh("PP2xDP2", 4, {"pipeline_parallel": 2})
SP2 = Mesh("SP2", 2, {"tensor_parallel": 2, "sequence_parallel": True})

pytestmark = [pytest.mark.slow, pytest.mark.meshes(PP2, PP2_TP2, PP2_DP2, SP2)]


@pytest.mark.parametrize("tokens", [0, 48])
def test_steps_are_those_of_the_reference(engine: EngineOnRanks, model: Model, tokens: int) -> None:
    engine.open(model("qwen3"), max_tokens_per_microbatch=tokens)
    reference = Reference(model("qwen3"), settings=EngineSettings())
    for step in range(3):
        loss = ("token mean", "row mean")[step % 2]
        got = engine.train(Rows(step), loss=loss)
        want = reference.forward_backward(Rows(step).whole(), LOSSES[loss])
        norm = reference.optimizer_step().gradient_norm
        reference.zero_grad()
        assert got["loss"] == pytest.approx(want.loss, abs=1e-5)
        assert got["metrics"] == pytest.approx(dict(want.metrics), abs=1e-5)
        assert got["gradient_norm"] == pytest.approx(norm, rel=1e-4)
    for name, weight in engine.weights().items():
        torch.testing.assert_close(weight, reference.weights[name], atol=LEARNING_RATE / 5, rtol=0)


def test_every_rank_is_given_the_outputs(engine: EngineOnRanks, model: Model) -> None:
    engine.open(model("llama"))
    want = Reference(model("llama")).outputs(Rows(1).whole())
    found = engine.forward(Rows(1))
    mask = Rows(1).whole().mask
    assert want.logprobs is not None
    torch.testing.assert_close(found["logprobs"][mask], want.logprobs[mask], atol=1e-5, rtol=0)


@pytest.mark.parametrize("head", ["value", "sequence-classification"])
def test_heads_of_one_number_are_on_the_last_stage(
    engine: EngineOnRanks, model: Model, head: str
) -> None:
    loss = {"value": "value", "sequence-classification": "score"}[head]
    engine.open(model("qwen3"), head=head)
    weights = engine.weights()
    own = [weights[name] for name in ("score.weight", "score.bias") if name in weights]
    reference = Reference(model("qwen3"), head=own)
    want = reference.forward_backward(Rows(1).whole(), LOSSES[loss])
    got = engine.train(Rows(1), loss=loss)
    assert got["loss"] == pytest.approx(want.loss, abs=1e-5)
    assert got["gradient_norm"] == pytest.approx(reference.optimizer_step().gradient_norm, rel=1e-4)


def test_what_the_ranks_send_is_what_is_exported(engine: EngineOnRanks, model: Model) -> None:
    engine.open(model("qwen3"))
    weights = engine.weights()
    sent: dict[str, list[Any]] = {name: [] for name in weights}
    for rank in engine.weight_shards():
        for name, _, start, tensor in rank:
            sent[name].append((start, tensor))
    for name, weight in weights.items():
        assert [start for start, _ in sent[name]] == sorted(start for start, _ in sent[name])
        assert torch.equal(torch.cat([tensor for _, tensor in sent[name]]), weight)


def test_a_checkpoint_continues_on_one_rank(
    engine: EngineOnRanks, place: Place, model: Model, tmp_path: Path
) -> None:
    path = str(tmp_path / "step-00000001")
    engine.open(model("qwen3"))
    engine.train(Rows(1))
    engine.ranks.do("save_checkpoint", path=path, state={"step": 1})
    want = [engine.train(Rows(step)) for step in (2, 3)]
    engine.close()
    single = place(engine.name, meshes.ONE)
    single.open(model("qwen3"))
    assert single.ranks.do("load_checkpoint", path=path) == [{"step": 1}]
    for step, expected in zip((2, 3), want, strict=True):
        got = single.train(Rows(step))
        assert got["loss"] == pytest.approx(expected["loss"], abs=1e-6)
        assert got["gradient_norm"] == pytest.approx(expected["gradient_norm"], rel=1e-4)


@pytest.mark.meshes(Mesh("PP4", 4, {"pipeline_parallel": 4}))
def test_stages_that_cannot_share_the_layers_are_refused(
    engine: EngineOnRanks, model: Model
) -> None:
    error = refusal(lambda: engine.open(model("qwen3")))
    assert error.field == "spec.trainer.engine.config.pipelineParallel"
