"""A job names its model by a path; the error of a wrong one names the field."""

import json
from pathlib import Path

import pytest
import torch

from rollcall_runtime.models.model_source import CONFIG_FILE, WEIGHTS_FILE, open_model, write_model
from rollcall_runtime.models.tiny_decoder import TinyConfig, TinyDecoder
from rollcall_runtime.worker.errors import SpecError

SMALL = TinyConfig(vocabulary=7, positions=5, width=8, heads=2, layers=1)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A model written by a former run."""
    path = tmp_path / "model"
    write_model(path, config=SMALL, weights=TinyDecoder.seeded(SMALL, seed=9).state_dict())
    return path


def test_the_built_in_model_has_the_task_s_vocabulary_and_room() -> None:
    source = open_model("builtin:reverse-tiny")
    assert source.config == TinyConfig(vocabulary=13, positions=13, eos=2)
    assert torch.equal(source.build(seed=4).head.weight, source.build(seed=4).head.weight)


def test_the_large_built_in_model_is_64_mib_and_does_the_same_task() -> None:
    small, large = open_model("builtin:reverse-tiny"), open_model("builtin:reverse-64m")
    model = large.build()
    nbytes = sum(weight.nbytes for weight in model.state_dict().values())
    assert 64 <= nbytes / 2**20 < 64.1
    for name in ("vocabulary", "positions", "eos"):
        assert getattr(large.config, name) == getattr(small.config, name)
    assert model(torch.zeros(1, 13, dtype=torch.long)).isfinite().all()


def test_a_directory_gives_back_what_was_written(directory: Path) -> None:
    source = open_model(str(directory))
    assert source.config == SMALL
    written = TinyDecoder.seeded(SMALL, seed=9).state_dict()
    read = source.build(seed=1).state_dict()  # the seed has no say where there are weights
    assert all(torch.equal(read[name], tensor) for name, tensor in written.items())


@pytest.mark.parametrize("path", ["Qwen/Qwen3-0.6B", "builtin:reverse", "/nowhere"])
def test_a_path_that_is_no_model_is_refused(path: str) -> None:
    with pytest.raises(SpecError) as caught:
        open_model(path)
    assert str(caught.value) == (
        f"spec.model.path: {path!r} is neither built in (builtin:reverse-64m, "
        "builtin:reverse-tiny) nor a directory in this container"
    )


@pytest.mark.parametrize("name", [CONFIG_FILE, WEIGHTS_FILE])
def test_a_directory_without_one_of_its_files_is_refused(directory: Path, name: str) -> None:
    (directory / name).unlink()
    with pytest.raises(SpecError, match=f"^spec.model.path: the directory .* has no {name}"):
        open_model(str(directory))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("{oops", "cannot read"),
        ('{"kind": "llama"}', "kind is 'llama'; only 'tiny' is known here"),
        ("[]", "kind is None"),
        ('{"kind": "tiny", "widht": 8}', "widht"),
        ('{"kind": "tiny", "heads": 7}', "heads must divide width"),
    ],
)
def test_a_wrong_config_is_refused(directory: Path, config: str, message: str) -> None:
    (directory / CONFIG_FILE).write_text(config, encoding="utf-8")
    with pytest.raises(SpecError, match=f"^spec.model.path: .*{message}"):
        open_model(str(directory))


def test_weights_of_another_shape_are_refused(directory: Path) -> None:
    config = json.loads((directory / CONFIG_FILE).read_text(encoding="utf-8"))
    (directory / CONFIG_FILE).write_text(json.dumps(config | {"width": 16}), encoding="utf-8")
    with pytest.raises(SpecError, match=r"(?s)^spec.model.path: cannot load .*size mismatch"):
        open_model(str(directory)).build()


@pytest.mark.parametrize("content", [b"not a state", b""])
def test_a_file_that_holds_no_weights_is_refused(directory: Path, content: bytes) -> None:
    (directory / WEIGHTS_FILE).write_bytes(content)
    with pytest.raises(SpecError, match=r"^spec.model.path: .* is not a file of weights"):
        open_model(str(directory)).build()
