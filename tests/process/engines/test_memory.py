"""What saves memory changes no bit of the result."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.process.engines import meshes
from tests.process.engines.engine_on_ranks import (
    EngineOnRanks,
    Model,
    assert_equal_bits,
    both_models,
)
from tests.process.engines.suite_batches import Rows
from tests.process.engines.tiny_models import Architecture

STEPS = 3


def trained(engine: EngineOnRanks, model: Path, **settings: Any) -> dict[str, torch.Tensor]:
    """The weights after some steps."""
    engine.open(model, **settings)
    for step in range(STEPS):
        engine.train(Rows(step))
    weights = engine.weights()
    engine.close()
    return weights


@pytest.mark.meshes(meshes.ONE, *meshes.PAIRS, meshes.CP2)
@pytest.mark.parametrize(
    "setting",
    [
        {"activation_checkpointing": "full"},
        {"offload": "optimizer"},
        {"offload": "parameters"},
        {"reshard_after_forward": True},
    ],
    ids=lambda setting: "-".join(map(str, *setting.items())),
)
@both_models
def test_no_bit_changes(
    engine: EngineOnRanks, model: Model, kind: Architecture, setting: dict[str, Any]
) -> None:
    saving = trained(engine, model(kind), **setting)
    assert_equal_bits(saving, trained(engine, model(kind)))


@pytest.mark.meshes(meshes.DP2, meshes.TP2, meshes.CP2)
def test_activation_checkpointing_keeps_less_for_the_backward_pass(
    engine: EngineOnRanks, model: Model
) -> None:
    def kept(**settings: Any) -> list[int]:
        engine.open(model("qwen3"), **settings)
        found = engine.ranks.do("kept_for_backward", rows=asdict(Rows(1)))
        engine.close()
        return found

    plain, saving = kept(), kept(activation_checkpointing="full")
    assert all(less < 0.7 * more for less, more in zip(saving, plain, strict=True)), (saving, plain)


@pytest.mark.meshes(meshes.ONE, *meshes.PAIRS)
def test_state_that_was_moved_to_host_memory_and_back_has_its_bits(
    engine: EngineOnRanks, model: Model
) -> None:
    expected = trained(engine, model("qwen3"))
    engine.open(model("qwen3"))
    for step in range(STEPS):
        engine.train(Rows(step))
        engine.ranks.do("to", device="host")
        engine.ranks.do("to", device="worker")
    assert_equal_bits(engine.weights(), expected)


@pytest.mark.meshes(*meshes.PAIRS, meshes.HSDP)
def test_engines_that_were_closed_leave_no_thread_behind(
    engine: EngineOnRanks, model: Model
) -> None:
    counts = []
    for _ in range(4):
        engine.open(model("qwen3"))
        engine.train(Rows(1))
        engine.close()
        counts.append(max(engine.ranks.do("threads")))
    # The first may start threads that later ones use, too.
    assert counts[-1] <= counts[1], counts


@pytest.mark.meshes(meshes.ONE)
def test_the_device_has_less_to_hold_while_state_is_in_host_memory(
    engine: EngineOnRanks, model: Model
) -> None:
    if engine.facts().device == "cpu":
        pytest.skip("a CPU's memory is the host's: there is nothing to move")
    engine.open(model("qwen3"))
    engine.train(Rows(1))
    before = engine.ranks.do("allocated")
    engine.ranks.do("to", device="host")
    assert all(a < b / 2 for a, b in zip(engine.ranks.do("allocated"), before, strict=True))
