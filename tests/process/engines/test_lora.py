"""Low-rank adapters: only they are trained; what is exported is the merged model, or they alone."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch

from rollcall_protocol.adapter_config import AdapterConfig
from rollcall_runtime.models.adapter_files import adapter_shapes
from rollcall_runtime.models.open_model import open_model
from tests.process.engines import meshes
from tests.process.engines.engine_on_ranks import (
    EngineOnRanks,
    Model,
    assert_equal_bits,
    both_models,
)
from tests.process.engines.suite_batches import Rows
from tests.process.engines.tiny_models import Architecture

RANK = 3
TARGETS = ("q_proj", "down_proj")
SETTINGS: dict[str, Any] = {"lora_rank": RANK, "lora_alpha": 6.0, "lora_targets": ",".join(TARGETS)}


@pytest.mark.meshes(*meshes.ALL)
@both_models
def test_the_targets_change_by_no_more_than_the_rank(
    engine: EngineOnRanks, model: Model, kind: Architecture
) -> None:
    engine.open(model(kind), learning_rate=None)
    base, expected = engine.weights(), engine.forward(Rows(1))["logprobs"]
    engine.close()
    engine.open(model(kind), learning_rate=1e-2, **SETTINGS)
    assert_equal_bits(engine.weights(), base)  # an adapter begins as zero
    assert engine.weight_info() == [(n, str(t.dtype), tuple(t.shape)) for n, t in base.items()]
    torch.testing.assert_close(engine.forward(Rows(1))["logprobs"], expected, atol=1e-5, rtol=0)
    losses = [engine.train(Rows(1))["loss"] for _ in range(4)]
    assert losses[-1] < losses[0]
    for name, weight in engine.weights().items():
        if name.split(".")[-2] not in TARGETS:
            assert torch.equal(weight, base[name]), name
            continue
        sizes = torch.linalg.svdvals(weight.double() - base[name].double())
        assert float(sizes[0]) > 1e-3, name
        assert float(sizes[RANK]) < 1e-5, name  # rounding of the merged weights


@pytest.mark.meshes(meshes.DP2)
def test_the_merged_weights_give_what_the_adapters_give(
    engine: EngineOnRanks, model: Model
) -> None:
    engine.open(model("qwen3"), learning_rate=1e-2, **SETTINGS)
    engine.train(Rows(1))
    expected = engine.forward(Rows(2))["logprobs"]
    file = engine.ranks.do("weights")[0]["file"]
    engine.close()
    engine.open(model("qwen3"), learning_rate=None)
    engine.ranks.do("load_weights", file=file)
    torch.testing.assert_close(engine.forward(Rows(2))["logprobs"], expected, atol=1e-5, rtol=0)


@pytest.mark.meshes(meshes.DP2)
def test_adapters_continue_from_a_checkpoint(
    engine: EngineOnRanks, model: Model, tmp_path: Path
) -> None:
    engine.open(model("qwen3"), learning_rate=1e-2, **SETTINGS)
    engine.train(Rows(1))
    path = str(tmp_path / "step-00000001")
    engine.ranks.do("save_checkpoint", path=path, state={})
    expected = [engine.train(Rows(step))["loss"] for step in (2, 3)]
    engine.close()
    engine.open(model("qwen3"), learning_rate=1e-2, **SETTINGS)
    engine.ranks.do("load_checkpoint", path=path)
    losses = [engine.train(Rows(step))["loss"] for step in (2, 3)]
    assert losses == pytest.approx(expected, abs=1e-6)


@pytest.mark.meshes(*meshes.ALL)
def test_adapters_alone_are_what_leaves_the_ranks_and_comes_back(
    engine: EngineOnRanks, model: Model, tmp_path: Path
) -> None:
    settings = {**SETTINGS, "lora_export": "adapter"}
    engine.open(model("qwen3"), learning_rate=1e-2, **settings)
    config = AdapterConfig(RANK, 6.0, TARGETS)
    shapes = adapter_shapes(open_model(str(model("qwen3"))).weights().shapes, config)
    engine.train(Rows(1))
    sent = engine.weights()
    assert {name: tuple(tensor.shape) for name, tensor in sent.items()} == shapes
    pieces: defaultdict[str, list[torch.Tensor]] = defaultdict(list)
    for shards in engine.weight_shards():
        for name, _, _, tensor in shards:
            pieces[name].append(tensor)
    assert_equal_bits({name: torch.cat(parts) for name, parts in pieces.items()}, sent)
    path = str(tmp_path / "step-00000001")
    engine.ranks.do("save_checkpoint", path=path, state={})
    expected = [engine.train(Rows(step))["loss"] for step in (2, 3)]
    engine.close()
    engine.open(model("qwen3"), learning_rate=1e-2, **settings)
    engine.ranks.do("load_checkpoint", path=path)
    assert_equal_bits(engine.weights(), sent)
    losses = [engine.train(Rows(step))["loss"] for step in (2, 3)]
    assert losses == pytest.approx(expected, abs=1e-6)
