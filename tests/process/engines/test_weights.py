"""Weights leave and enter an engine under the names of their source, bit for bit."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tests.process.engines import meshes
from tests.process.engines.engine_on_ranks import (
    EngineOnRanks,
    Model,
    assert_equal_bits,
    both_models,
    refusal,
)
from tests.process.engines.reference import Reference
from tests.process.engines.suite_batches import Rows
from tests.process.engines.tiny_models import Architecture

KINDS = ["qwen3", "qwen2", "llama"]


@pytest.mark.meshes(*meshes.ALL)
@pytest.mark.parametrize("kind", KINDS)
def test_exported_weights_are_bit_for_bit_those_that_were_loaded(
    engine: EngineOnRanks, model: Model, kind: Architecture
) -> None:
    engine.open(model(kind))
    assert_equal_bits(engine.weights(), dict(Reference(model(kind)).weights))


@pytest.mark.parametrize("learning_rate", [None, 1e-3], ids=["frozen", "trained"])
def test_what_is_exported_is_announced_in_the_same_order(
    engine: EngineOnRanks, model: Model, learning_rate: float | None
) -> None:
    engine.open(model("qwen3"), learning_rate=learning_rate)
    found = [(n, str(t.dtype), tuple(t.shape)) for n, t in engine.weights().items()]
    assert found == engine.weight_info()


@pytest.mark.meshes(*meshes.ALL)
def test_what_the_ranks_send_makes_every_tensor_whole(engine: EngineOnRanks, model: Model) -> None:
    engine.open(model("qwen3"))
    engine.train(Rows(1))
    weights = engine.weights()
    pieces: defaultdict[str, list[tuple[int, torch.Tensor]]] = defaultdict(list)
    for shards in engine.weight_shards():
        for name, shape, start, tensor in shards:
            assert shape == tuple(weights[name].shape)
            assert tensor.shape[1:] == weights[name].shape[1:]
            pieces[name].append((start, tensor))
    assert_equal_bits({n: torch.cat([t for _, t in parts]) for n, parts in pieces.items()}, weights)
    for name, parts in pieces.items():
        ends = [0, *torch.tensor([len(tensor) for _, tensor in parts]).cumsum(0).tolist()]
        assert [start for start, _ in parts] == ends[:-1], name


@pytest.mark.parametrize("sharded", [False, True], ids=["from-rank-0", "from-all-ranks"])
@pytest.mark.parametrize("transport", ["gloo", "store"])
@both_models
def test_a_rollout_receives_what_is_exported(
    engine: EngineOnRanks,
    model: Model,
    tmp_path: Path,
    kind: Architecture,
    transport: str,
    sharded: bool,
) -> None:
    config: dict[str, Any] = {"operationTimeout": 10}
    if transport == "store":
        config["url"] = f"file://{tmp_path}"
    engine.open(model(kind))
    engine.train(Rows(1))
    received = engine.received_weights(transport, config, sharded=sharded)
    assert_equal_bits(received, engine.weights())


def test_weights_can_be_replaced_and_the_optimizer_keeps_its_state(
    engine: EngineOnRanks, model: Model, tmp_path: Path
) -> None:
    engine.open(model("qwen3"))
    engine.train(Rows(1))
    before = engine.weights()
    file = str(tmp_path / "weights.safetensors")
    save_file({name: tensor.clone() for name, tensor in before.items()}, file)
    engine.train(Rows(2))
    expected = engine.weights()
    engine.close()
    engine.open(model("qwen3"))
    engine.train(Rows(1))  # the same state of the optimizer
    save_other = {name: tensor + 1 for name, tensor in before.items()}
    other = str(tmp_path / "other.safetensors")
    save_file(save_other, other)
    engine.ranks.do("load_weights", file=other)
    assert_equal_bits(engine.weights(), save_other)
    engine.ranks.do("load_weights", file=file)
    engine.train(Rows(2))
    assert_equal_bits(engine.weights(), expected)


@pytest.mark.parametrize("wrong", ["missing", "additional", "short"])
def test_weights_of_another_model_are_refused_on_all_ranks(
    engine: EngineOnRanks, model: Model, tmp_path: Path, wrong: str
) -> None:
    engine.open(model("qwen3"))
    before = engine.weights()
    changed = dict(before)
    name = next(iter(changed))
    if wrong == "missing":
        del changed[name]
    elif wrong == "additional":
        changed["more.weight"] = torch.zeros(2)
    else:
        changed[name] = changed[name][:1].clone()
    file = str(tmp_path / "weights.safetensors")
    save_file(changed, file)
    error = refusal(lambda: engine.ranks.do("load_weights", file=file))
    assert error.type == "ValueError"
    assert_equal_bits(engine.weights(), before)


@pytest.mark.meshes(*meshes.ALL)
@both_models
def test_a_frozen_model_gives_what_the_reference_gives(
    engine: EngineOnRanks, model: Model, kind: Architecture
) -> None:
    engine.open(model(kind), learning_rate=None)
    with torch.no_grad():
        logprobs = Reference(model(kind)).outputs(Rows(4).whole()).logprobs
    assert logprobs is not None
    expected = logprobs.masked_fill(~Rows(4).whole().mask, 0)
    found = engine.forward(Rows(4))["logprobs"]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
