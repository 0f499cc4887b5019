"""Files of weights are checked by their headers; each problem names the file and what to do."""

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from rollcall_runtime.models.weight_files import INDEX_FILE, SINGLE_FILE, open_weight_files
from rollcall_runtime.worker.errors import SpecError
from tests.process.engines.tiny_models import write_tiny_model


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    """A model in several files with an index."""
    return write_tiny_model(tmp_path / "model", shard_bytes=100_000)


def refusal(directory: Path) -> str:
    with pytest.raises(SpecError) as caught:
        open_weight_files(directory)
    assert caught.value.field == "spec.model.path"
    return caught.value.problem


def test_one_file_and_several_give_the_same_tensors(sharded: Path, tmp_path: Path) -> None:
    single = write_tiny_model(tmp_path / "single")
    whole = load_file(single / SINGLE_FILE)
    for files in (open_weight_files(single), open_weight_files(sharded)):
        assert files.tensors.keys() == whole.keys()
        for name, tensor in whole.items():
            assert files.tensors[name].shape == tuple(tensor.shape)
            assert torch.equal(files.read(name), tensor)


def test_rows_are_read_alone(sharded: Path) -> None:
    files = open_weight_files(sharded)
    whole = files.read("model.embed_tokens.weight")
    assert torch.equal(files.read("model.embed_tokens.weight", (3, 7)), whole[3:7])
    norm = files.read("model.norm.weight")
    assert torch.equal(files.read("model.norm.weight", (5, 64)), norm[5:])


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_weight_that_is_not_finite_is_named_where_it_is_read(
    tmp_path: Path, value: float
) -> None:
    file = tmp_path / SINGLE_FILE
    save_file({"sound": torch.ones(2), "spoilt": torch.tensor([1.0, 2.0, value])}, file)
    files = open_weight_files(tmp_path)
    assert files.read("sound").tolist() == [1.0, 1.0]
    assert files.read("spoilt", (0, 2)).tolist() == [1.0, 2.0]
    with pytest.raises(SpecError, match=rf"^spec.model.path: {file}: spoilt holds NaN or infinite"):
        files.read("spoilt", (1, 3))


def test_a_missing_file_is_named(sharded: Path) -> None:
    missing = sorted(sharded.glob("model-*.safetensors"))[1]
    count = len(list(sharded.glob("model-*.safetensors")))
    missing.unlink()
    assert refusal(sharded) == (
        f"{sharded / INDEX_FILE} names {count} files, of which {missing.name} is missing; "
        "copy the whole model"
    )


def test_an_index_that_names_a_tensor_which_its_file_lacks_is_refused(sharded: Path) -> None:
    index = json.loads((sharded / INDEX_FILE).read_text())
    first, *_, last = sorted(set(index["weight_map"].values()))
    index["weight_map"]["model.norm.weight"] = first
    (sharded / INDEX_FILE).write_text(json.dumps(index))
    assert first != last
    assert refusal(sharded) == (
        f"{sharded / INDEX_FILE} says that model.norm.weight is in {first}, which holds no such "
        "tensor; copy index and files from one model"
    )


@pytest.mark.parametrize(
    "text", ["{oops", "[]", "{}", '{"weight_map": {}}', '{"weight_map": {"a": "../../etc/x"}}']
)
def test_an_index_that_is_none_is_refused(sharded: Path, text: str) -> None:
    (sharded / INDEX_FILE).write_text(text)
    assert str(sharded / INDEX_FILE) in refusal(sharded)


@pytest.mark.parametrize("kept", [0, 4, 100, -1])
def test_a_truncated_file_is_refused(tmp_path: Path, kept: int) -> None:
    file = write_tiny_model(tmp_path / "model") / SINGLE_FILE
    file.write_bytes(file.read_bytes()[:kept])
    problem = refusal(tmp_path / "model")
    assert problem.startswith(f"{file} is not a whole safetensors file (")
    assert problem.endswith("); copy it again")


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / SINGLE_FILE).write_bytes(b"version https://git-lfs.github.com/spec/v1\n" * 3)
    assert "is not a whole safetensors file" in refusal(tmp_path)


def test_a_directory_without_weights_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path) == (
        f"the directory '{tmp_path}' has no model.safetensors and no model.safetensors.index.json"
    )


def test_pickled_weights_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    assert refusal(tmp_path) == (
        f"the directory '{tmp_path}' has no model.safetensors but pickled weights, which are not "
        "read; save the model as safetensors"
    )


def test_quantized_weights_are_refused(tmp_path: Path) -> None:
    save_file({"w": torch.zeros(2, dtype=torch.int8)}, tmp_path / SINGLE_FILE)
    assert "w is stored as I8; quantized weights cannot be trained" in refusal(tmp_path)
