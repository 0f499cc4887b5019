"""A checkpoint continues as if nothing had happened, on any number of ranks."""

from pathlib import Path
from typing import Any

import pytest
import torch

from rollcall_protocol.train_settings import BUILT_IN
from tests.process.engines import meshes
from tests.process.engines.engine_on_ranks import (
    EngineOnRanks,
    Model,
    Place,
    assert_equal_bits,
    both_models,
    refusal,
)
from tests.process.engines.meshes import Mesh
from tests.process.engines.suite_batches import Rows
from tests.process.engines.tiny_models import Architecture

CLOSE = 1e-6  # of a float32 loss; other ranks add in another order
STATE = {"step": 2, "cursor": [17, "a name"], "nothing": None}
SETTINGS: dict[str, Any] = {"schedule": "linear", "decay_steps": 10, "weight_decay": 0.1}
# Of two that follow each other, one engine is the same: its ranks are used again.
PAIRS_OF_ENGINES = [
    pair
    for one, other in [
        ("fsdp", "fsdp2"),
        ("fsdp2", "torchtitan"),
        ("torchtitan", "fsdp"),
        ("fsdp", "megatron"),
        ("megatron", "fsdp2"),
        ("torchtitan", "megatron"),
    ]
    for pair in [(one, other), (other, one)]
]


def save_and_continue(engine: EngineOnRanks, model: Path, path: Path) -> list[dict[str, Any]]:
    """Two steps, a checkpoint, and the figures of two steps after it."""
    engine.open(model, **SETTINGS)
    for step in range(2):
        engine.train(Rows(step))
    engine.ranks.do("save_checkpoint", path=str(path), state=STATE)
    return [engine.train(Rows(step)) for step in (2, 3)]


def assert_continues(
    engine: EngineOnRanks, model: Path, path: Path, expected: list[dict[str, Any]]
) -> None:
    engine.open(model, **SETTINGS)
    engine.forward(Rows(9))  # weights that were gathered before are not used again
    assert engine.ranks.do("load_checkpoint", path=str(path)) == [STATE] * engine.mesh.world
    for step, want in zip((2, 3), expected, strict=True):
        got = engine.train(Rows(step))
        assert got["loss"] == pytest.approx(want["loss"], rel=CLOSE)
        assert got["gradient_norm"] == pytest.approx(want["gradient_norm"], rel=1e-4)
        assert got["learning_rate"] == want["learning_rate"]


@pytest.mark.meshes(*meshes.PAIRS)
@both_models
def test_the_same_ranks_continue(
    engine: EngineOnRanks, model: Model, tmp_path: Path, kind: Architecture
) -> None:
    expected = save_and_continue(engine, model(kind), tmp_path / "step-00000002")
    weights = engine.weights()
    engine.close()
    assert_continues(engine, model(kind), tmp_path / "step-00000002", expected)
    assert_equal_bits(engine.weights(), weights)


@pytest.mark.meshes(*meshes.PAIRS)
def test_every_rank_continues_with_its_own_random_numbers(
    engine: EngineOnRanks, model: Model, tmp_path: Path
) -> None:
    engine.open(model("qwen3"))
    engine.train(Rows(1))
    engine.ranks.do("random_numbers", seed=5)
    path = str(tmp_path / "step-00000001")
    engine.ranks.do("save_checkpoint", path=path, state={})
    expected = engine.ranks.do("random_numbers")
    assert expected[0] != expected[1]
    engine.close()
    engine.open(model("qwen3"))
    engine.ranks.do("load_checkpoint", path=path)
    assert engine.ranks.do("random_numbers") == expected


@pytest.mark.slow
@pytest.mark.meshes(*meshes.PAIRS)
@pytest.mark.parametrize("other", [meshes.ONE, meshes.DP4, meshes.DP2_TP2], ids=lambda m: m.name)
@pytest.mark.parametrize("kind", ["qwen3", "llama"])
def test_another_number_of_ranks_continues(
    engine: EngineOnRanks,
    place: Place,
    model: Model,
    tmp_path: Path,
    kind: Architecture,
    other: Mesh,
) -> None:
    expected = save_and_continue(engine, model(kind), tmp_path / "step-00000002")
    engine.close()
    assert_continues(place(engine.name, other), model(kind), tmp_path / "step-00000002", expected)


@pytest.mark.parametrize(
    "setting", [{"offload": "optimizer"}, {"activation_checkpointing": "full"}]
)
@pytest.mark.meshes(meshes.DP2)
def test_memory_settings_may_change_in_between(
    engine: EngineOnRanks, model: Model, tmp_path: Path, setting: dict[str, Any]
) -> None:
    expected = save_and_continue(engine, model("qwen3"), tmp_path / "step-00000002")
    engine.close()
    engine.open(model("qwen3"), **SETTINGS, **setting)
    engine.ranks.do("load_checkpoint", path=str(tmp_path / "step-00000002"))
    assert engine.train(Rows(2))["loss"] == pytest.approx(expected[0]["loss"], rel=CLOSE)


@pytest.mark.meshes(*meshes.PAIRS)
def test_training_goes_on_while_a_checkpoint_is_written(
    engine: EngineOnRanks, model: Model, tmp_path: Path
) -> None:
    engine.open(model("qwen3"), **SETTINGS)
    engine.train(Rows(1))
    before = engine.weights()
    path = str(tmp_path / "step-00000001")
    engine.ranks.do("save_beside_training", path=path, rows={"seed": 2})
    assert not torch.equal(next(iter(engine.weights().values())), next(iter(before.values())))
    engine.ranks.do("load_checkpoint", path=path)
    assert_equal_bits(engine.weights(), before)


@pytest.mark.meshes(*meshes.PAIRS)
def test_the_checkpoint_of_another_model_is_refused_on_all_ranks(
    engine: EngineOnRanks, model: Model, tmp_path: Path
) -> None:
    save_and_continue(engine, model("qwen3"), tmp_path / "step-00000002")
    engine.close()
    engine.open(model("llama"), **SETTINGS)
    before = engine.weights()
    error = refusal(
        lambda: engine.ranks.do("load_checkpoint", path=str(tmp_path / "step-00000002"))
    )
    assert error.type == "ValueError"
    assert_equal_bits(engine.weights(), before)


@pytest.mark.meshes(meshes.DP2)
def test_where_nothing_can_be_written_every_rank_raises(
    engine: EngineOnRanks, model: Model, tmp_path: Path
) -> None:
    engine.open(model("qwen3"))
    (tmp_path / "a-file").touch()
    path = str(tmp_path / "a-file" / "step-00000001")
    error = refusal(lambda: engine.ranks.do("save_checkpoint", path=path, state={}))
    assert error.type in {"OSError", "NotADirectoryError", "FileExistsError"}
    engine.train(Rows(1))


@pytest.mark.slow
@pytest.mark.meshes(meshes.DP2, meshes.TP2)
@pytest.mark.parametrize("other", sorted(BUILT_IN))
def test_another_engine_takes_the_exported_weights(
    engine: EngineOnRanks, place: Place, model: Model, other: str
) -> None:
    engine.open(model("qwen3"))
    engine.train(Rows(1))
    weights, expected = engine.weights(), engine.forward(Rows(2))
    file = engine.ranks.do("weights")[0]["file"]
    engine.close()
    second = place(other, meshes.DP2)
    second.open(model("qwen3"))
    second.ranks.do("load_weights", file=file)
    assert_equal_bits(second.weights(), weights)
    found = second.forward(Rows(2))
    torch.testing.assert_close(found["logprobs"], expected["logprobs"], atol=1e-5, rtol=0)


@pytest.mark.slow
@pytest.mark.xdist_group("engine-pairs")
@pytest.mark.parametrize(("first", "second"), PAIRS_OF_ENGINES)
@pytest.mark.parametrize("kind", ["qwen3", "llama"])
def test_engines_continue_from_each_others_checkpoints(
    place: Place, model: Model, tmp_path: Path, first: str, second: str, kind: Architecture
) -> None:
    """Their names are Hugging Face's, the layout is torch.distributed.checkpoint's."""
    engine = place(first, meshes.DP2)
    expected = save_and_continue(engine, model(kind), tmp_path / "step-00000002")
    engine.close()
    assert_continues(place(second, meshes.DP2), model(kind), tmp_path / "step-00000002", expected)


@pytest.mark.slow
@pytest.mark.xdist_group("engine-pairs")
@pytest.mark.parametrize(
    ("first", "second"),
    [pair for pair in PAIRS_OF_ENGINES if "tensor_parallel" in BUILT_IN[pair[0]]],
)
def test_engines_continue_from_tensor_parallel_ranks_of_another(
    place: Place, model: Model, tmp_path: Path, first: str, second: str
) -> None:
    engine = place(first, meshes.TP2)
    expected = save_and_continue(engine, model("qwen3"), tmp_path / "step-00000002")
    engine.close()
    assert_continues(
        place(second, meshes.DP2), model("qwen3"), tmp_path / "step-00000002", expected
    )
