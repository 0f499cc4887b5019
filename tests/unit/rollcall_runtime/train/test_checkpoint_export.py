"""A checkpoint becomes a directory that others load."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from rollcall_protocol.job_config import EngineRef, OptimizerConfig
from rollcall_runtime.models.adapter_files import CONFIG_FILE, WEIGHTS_FILE
from rollcall_runtime.models.open_model import open_model
from rollcall_runtime.train.checkpoint.files import checkpoint_path
from rollcall_runtime.train.checkpoint_export import (
    export_checkpoint,
    export_weights,
    find_checkpoint,
)
from rollcall_runtime.train.engine_configuration import split_config
from rollcall_runtime.train.process_group import TrainerProcessGroup
from rollcall_runtime.train.train_engine import EngineSetup, train_engines
from tests.process.engines.tiny_models import write_tiny_model
from tests.unit.rollcall_runtime.train.supervised_data import MODEL


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Checkpoints of steps 1 and 2, each of other weights."""
    folder = tmp_path / "checkpoints"
    ranks = TrainerProcessGroup()
    try:
        for step in (1, 2):
            setup = EngineSetup(MODEL, ranks, OptimizerConfig("adamw", 1e-3), seed=step)
            engine = train_engines.get("fsdp2")(setup)
            engine.initialize()
            engine.save_checkpoint(checkpoint_path(folder, step), state={})
            engine.close()
    finally:
        ranks.close()
    return folder


def export(checkpoint: Path, out: Path, *, precision: str = "fp32") -> Path:
    return export_checkpoint(
        checkpoint, out, model=MODEL, engine=EngineRef("fsdp2"), precision=precision
    )


def test_of_several_checkpoints_the_newest_whole_one_is_exported(
    root: Path, tmp_path: Path
) -> None:
    assert export(root, tmp_path / "out") == checkpoint_path(root, 2)
    expected = open_model(MODEL).build(seed=2).state_dict()
    exported = open_model(str(tmp_path / "out")).build().state_dict()
    assert all(torch.equal(exported[name], tensor) for name, tensor in expected.items())
    next(checkpoint_path(root, 2).glob("*.distcp")).write_bytes(b"")
    assert find_checkpoint(root) == checkpoint_path(root, 1)


def test_one_checkpoint_can_be_named_and_written_in_bf16(root: Path, tmp_path: Path) -> None:
    one = checkpoint_path(root, 1)
    assert export(one, tmp_path / "out", precision="bf16") == one
    expected = open_model(MODEL).build(seed=1).state_dict()
    exported = open_model(str(tmp_path / "out")).build().state_dict()
    for name, tensor in expected.items():
        assert torch.equal(exported[name], tensor.bfloat16().float())


def test_what_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"state.json cannot be read"):
        find_checkpoint(tmp_path / "none")


def test_a_directory_that_is_there_is_not_overwritten(root: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(OSError, match="is there already"):
        export(root, tmp_path / "out")


def test_weights_that_are_not_finite_are_not_exported(
    tmp_path: Path, ranks: TrainerProcessGroup
) -> None:
    engine = train_engines.get("fsdp2")(EngineSetup(MODEL, ranks, OptimizerConfig("adamw", 1e-3)))
    engine.initialize()
    try:
        weights = {name: tensor.clone() for name, tensor in engine.named_weights()}
        name = list(weights)[-1]
        weights[name].view(-1)[-1] = torch.inf
        engine.load_weights(weights)
        with pytest.raises(OSError, match=f"the weights are not finite: {name}"):
            export_weights(engine, tmp_path / "out")
        assert list(tmp_path.iterdir()) == []
    finally:
        engine.close()


def test_an_adapter_that_is_trained_alone_is_exported_in_pefts_format(
    tmp_path: Path, ranks: TrainerProcessGroup
) -> None:
    model = str(write_tiny_model(tmp_path / "model"))
    config = {"loraRank": 2, "loraTargets": "q_proj", "loraExport": "adapter"}
    settings, _ = split_config(config)
    setup = EngineSetup(model, ranks, OptimizerConfig("adamw", 1e-3), settings=settings)
    engine = train_engines.get("fsdp2")(setup)
    engine.initialize()
    try:
        raised = {name: tensor + 0.25 for name, tensor in engine.named_weights()}
        engine.load_weights(raised)
        engine.save_checkpoint(checkpoint_path(tmp_path / "checkpoints", 1), state={})
        export_weights(engine, tmp_path / "final")
    finally:
        engine.close()
    ranks.close()
    reference = EngineRef("fsdp2", config)
    folder = tmp_path / "from-checkpoint"
    export_checkpoint(
        tmp_path / "checkpoints", folder, model=model, engine=reference, precision="fp32"
    )
    for directory in (tmp_path / "final", folder):
        assert {path.name for path in directory.iterdir()} == {CONFIG_FILE, WEIGHTS_FILE}
        exported = load_file(directory / WEIGHTS_FILE)
        assert exported.keys() == raised.keys()
        assert all(torch.equal(exported[name], tensor) for name, tensor in raised.items())
