"""What a checkpoint may contain, and that nothing in one runs code."""

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint import metadata as contents
from torch.distributed.checkpoint.state_dict_saver import save

from rollcall_protocol.job_config import CheckpointConfig
from rollcall_runtime.train.checkpoint import files
from rollcall_runtime.train.checkpoint.checked_pickles import MetadataReader, metadata_problem
from rollcall_runtime.train.checkpoint.checkpointer import Checkpointer
from rollcall_runtime.train.checkpoint.distributed_save import check_same_tensors, load_tensors
from tests.unit.rollcall_runtime.train.checkpoint.test_checkpointer import saved
from tests.unit.rollcall_runtime.train.counting_engine import CountingEngine
from tests.unit.rollcall_runtime.train.fake_ranks import FakeRanks, as_ranks

# torch warns that one process alone needs no collectives, which is what is meant here.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


class MakesFolder:
    """A pickle of this makes a folder when it is loaded."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self._path),)


def write(path: Path, values: dict[str, Any]) -> None:
    save(values, checkpoint_id=path, no_dist=True)


def test_tensors_and_plain_values_come_back(tmp_path: Path) -> None:
    values: dict[str, Any] = {
        "w": torch.arange(6.0).bfloat16().view(2, 3),
        "lr": 0.5,
        "betas": (0.9, 0.95),
    }
    write(tmp_path, {"actor": values})
    found: dict[str, Any] = {
        "actor": {"w": torch.zeros(2, 3).bfloat16(), "lr": 0.0, "betas": (0.0, 0.0)}
    }
    load_tensors(as_ranks(FakeRanks()), found, tmp_path)
    assert torch.equal(found["actor"].pop("w"), values.pop("w"))
    assert found["actor"] == values
    assert metadata_problem(tmp_path) == ""


class Attribute:
    """A pickle of this reads an attribute when it is loaded, as Python 3.11.2 pickles an Enum."""

    def __init__(self, owner: object, name: str) -> None:
        self._owner, self._name = owner, name

    def __reduce__(self) -> Any:
        return getattr, (self._owner, self._name)


def test_a_member_of_an_enumeration_may_be_read_as_its_attribute(tmp_path: Path) -> None:
    write(tmp_path, {"w": torch.zeros(3)})
    member = Attribute(contents._MEM_FORMAT_ENCODING, "TORCH_CONTIGUOUS_FORMAT")
    (tmp_path / ".metadata").write_bytes(pickle.dumps(contents.Metadata({}, storage_data=member)))
    found = MetadataReader(tmp_path).read_metadata()
    assert found.storage_data is contents._MEM_FORMAT_ENCODING.TORCH_CONTIGUOUS_FORMAT


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (contents.Metadata, "__init__"),
        (contents._MEM_FORMAT_ENCODING, "__class__"),
        (contents._MEM_FORMAT_ENCODING, "mro"),
        (torch.float32, "is_floating_point"),
    ],
)
def test_no_other_attribute_is_read(tmp_path: Path, owner: object, name: str) -> None:
    write(tmp_path, {"w": torch.zeros(3)})
    (tmp_path / ".metadata").write_bytes(pickle.dumps(Attribute(owner, name)))
    assert f"it reads the attribute {name} of" in metadata_problem(tmp_path)


def test_metadata_that_would_run_code_is_named_and_does_not_run(tmp_path: Path) -> None:
    saved_at, made = tmp_path / "saved", tmp_path / "made"
    write(saved_at, {"w": torch.zeros(3)})
    (saved_at / ".metadata").write_bytes(pickle.dumps(MakesFolder(made)))
    assert "it names posix.mkdir, which is no part of metadata" in metadata_problem(saved_at)
    tensors = {"w": torch.zeros(3)}
    with pytest.raises(ValueError, match=r"posix\.mkdir"):
        load_tensors(as_ranks(FakeRanks()), tensors, saved_at)
    with pytest.raises(ValueError, match=r"posix\.mkdir"):
        check_same_tensors(saved_at, tensors, prefix="actor")
    assert not made.exists()


def test_a_value_that_would_run_code_does_not(tmp_path: Path) -> None:
    saved_at, made = tmp_path / "saved", tmp_path / "made"
    write(saved_at, {"w": torch.zeros(3), "lr": MakesFolder(made)})
    with pytest.raises(ValueError, match="holds other tensors"):
        load_tensors(as_ranks(FakeRanks()), {"w": torch.zeros(3), "lr": 0.5}, saved_at)
    assert not made.exists()


@pytest.mark.parametrize("content", [b"", b"\x80", pickle.dumps({}), pickle.dumps(None)])
def test_a_file_that_is_no_metadata_is_a_problem(tmp_path: Path, content: bytes) -> None:
    (tmp_path / ".metadata").write_bytes(content)
    assert metadata_problem(tmp_path).startswith(".metadata cannot be used: ")


def test_training_resumes_from_the_checkpoint_before_one_whose_metadata_would_run_code(
    tmp_path: Path,
) -> None:
    root, made = tmp_path / "saved", tmp_path / "made"
    saved(root, 5, 10)
    newest = files.checkpoint_path(root, 10)
    (newest / ".metadata").write_bytes(pickle.dumps(MakesFolder(made)))
    seal_again(newest)
    checkpoints = Checkpointer(
        CheckpointConfig(every_steps=5, path=str(root)), ranks=as_ranks(FakeRanks()), pod_uid="a"
    )
    assert checkpoints.restore(CountingEngine()).step == 5
    assert "posix.mkdir" in checkpoints.problem
    assert not made.exists()


def seal_again(path: Path) -> None:
    """Whoever can write to the volume can make lengths and checksums right, too."""
    state = json.loads((path / "state.json").read_text())["state"]
    (path / "state.json").unlink()
    path.rename(files.scratch_path(path))
    files.commit_checkpoint(path, state=state)
