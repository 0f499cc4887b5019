"""Weights that are NaN or infinite are neither saved nor resumed from."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.state_dict_saver import save as write

from rollcall_runtime.models.finite import finite
from rollcall_runtime.train.checkpoint.checkpointer import TrainState
from rollcall_runtime.train.checkpoint.files import checkpoint_path, list_checkpoints
from rollcall_runtime.train.checkpoint.soundness import checkpoint_problem
from rollcall_runtime.train.engines.fsdp2 import Fsdp2Engine
from rollcall_runtime.train.process_group import TrainerProcessGroup
from tests.unit.rollcall_runtime.train.checkpoint.test_checked_pickles import seal_again
from tests.unit.rollcall_runtime.train.checkpoint.test_checkpointer import checkpoints, save, saved
from tests.unit.rollcall_runtime.train.counting_engine import CountingEngine
from tests.unit.rollcall_runtime.train.reference import setup

# torch warns that one process alone needs no collectives, which is what is meant here.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

SOUND = torch.ones(3, 2)


def spoilt(value: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    tensor = torch.ones(3, 2)
    tensor[2, 1] = value
    return tensor.to(dtype)


def add_tensors(path: Path, tensors: dict[str, Any]) -> None:
    """Put a torch checkpoint of these beside what is in `path`, with checksums that are right."""
    write(tensors, checkpoint_id=path, no_dist=True)
    seal_again(path)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_training_resumes_from_the_checkpoint_before_one_of_such_weights(
    tmp_path: Path, value: float, caplog: pytest.LogCaptureFixture
) -> None:
    saved(tmp_path, 5, 10)
    for step, weight in ((5, SOUND), (10, spoilt(value))):
        add_tensors(checkpoint_path(tmp_path, step), {"model": {"head.weight": weight}})
    made = checkpoints(tmp_path)
    assert made.restore(CountingEngine()).step == 5
    problem = "checkpoint step-00000010 is damaged (weights are not finite: head.weight)"
    assert made.problem == f"{problem}; training resumed from step-00000005"
    assert "step-00000010 is damaged and is skipped: weights are not finite" in caplog.text


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float16, torch.bfloat16, torch.float8_e5m2], ids=str
)
def test_each_rank_looks_at_its_share_of_the_weights(tmp_path: Path, dtype: torch.dtype) -> None:
    saved(tmp_path, 5)
    path = checkpoint_path(tmp_path, 5)
    add_tensors(path, {"model": {"a": SOUND, "b": SOUND, "c": spoilt(math.nan, dtype), "d": SOUND}})
    found = [checkpoint_problem(path, part=part, of=2) for part in range(2)]
    assert found == ["weights are not finite: c", ""]


def test_a_tensor_without_values_is_finite() -> None:
    assert finite(torch.empty(0, 4))


def test_integers_and_the_optimizers_values_are_no_weights(tmp_path: Path) -> None:
    saved(tmp_path, 5)
    path = checkpoint_path(tmp_path, 5)
    tensors = {
        "model": {"position": torch.arange(4)},
        "optimizer": {"state": {"a": {"exp_avg_sq": spoilt(math.inf)}}},
    }
    add_tensors(path, tensors)
    assert checkpoint_problem(path) == ""


def test_weights_that_cannot_be_read_are_a_problem(tmp_path: Path) -> None:
    saved(tmp_path, 5)
    path = checkpoint_path(tmp_path, 5)
    write({"model": {"a": SOUND}}, checkpoint_id=path, no_dist=True)
    (path / "__0_0.distcp").unlink()
    seal_again(path)
    assert checkpoint_problem(path).startswith("its weights cannot be read: FileNotFoundError")


def test_such_weights_are_not_saved_and_the_checkpoint_before_stays(
    tmp_path: Path, ranks: TrainerProcessGroup
) -> None:
    engine, made = Fsdp2Engine(setup(ranks)), checkpoints(tmp_path)
    engine.initialize()
    try:
        save(made, engine, TrainState(5))
        weights = {name: tensor.clone() for name, tensor in engine.named_weights()}
        name, tensor = list(weights.items())[-1]
        tensor.view(-1)[-1] = math.nan
        engine.load_weights(weights)
        save(made, engine, TrainState(10))
        assert made.problem == f"step 10 was not saved: weights are not finite: {name}"
        assert made.failures == 1
        assert list_checkpoints(tmp_path) == [checkpoint_path(tmp_path, 5)]
        assert not list(tmp_path.glob(".step*")), "no scratch is left"
        assert made.restore(engine).step == 5
        assert all(bool(tensor.isfinite().all()) for _, tensor in engine.named_weights())
    finally:
        engine.close()
