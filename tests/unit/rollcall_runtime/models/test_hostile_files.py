"""Directories of models that others made to harm: one message that names the file and the field."""

import json
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from rollcall_runtime.models import hugging_face, weight_files
from rollcall_runtime.models.open_model import open_model
from rollcall_runtime.models.tokenizer import open_tokenizer
from rollcall_runtime.worker.errors import SpecError
from tests.process.engines.tiny_models import write_model, write_tiny_model

SECONDS = 20.0


@pytest.fixture(scope="module")
def _written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def model(_written: Path, tmp_path: Path) -> Path:
    """A model that may be changed."""
    directory = tmp_path / "model"
    directory.mkdir()
    for file in _written.iterdir():
        (directory / file.name).write_bytes(file.read_bytes())
    return directory


def refusal(directory: Path) -> str:
    began = time.monotonic()
    with pytest.raises(SpecError) as caught:
        open_model(str(directory)).build()
    assert time.monotonic() - began < SECONDS
    assert caught.value.field == "spec.model.path"
    assert len(caught.value.problem) < 1000
    return caught.value.problem


def edit(directory: Path, **change: Any) -> None:
    file = directory / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("vocab_size", 10**30, "at most 16777216 can be built"),
        ("vocab_size", 10**4000, "0...; at most"),
        ("hidden_size", -16, "is -16, not a positive number"),
        ("hidden_size", "64", "is '64', not a positive number"),
        ("hidden_size", 64.0, "is 64.0, not a positive number"),
        ("intermediate_size", 10**9, "at most 1048576 can be built"),
        ("intermediate_size", [96, 10**9], "intermediate_size is 1000000000; at most 1048576"),
        ("num_attention_heads", 0, "is 0, not a positive number"),
        ("num_key_value_heads", True, "is True, not a positive number"),
        ("head_dim", -1, "is -1, not a positive number"),
        ("num_hidden_layers", 10**6, "at most 1024 can be built"),
        ("max_position_embeddings", 10**18, "at most 1073741824 can be built"),
        ("rms_norm_eps", float("inf"), "is inf, which no model has"),
        ("initializer_range", 10**20, "which no model has"),
        ("rms_norm_eps", "small", "rms_norm_eps"),
        ("rms_norm_eps", float("nan"), "NaN"),
        ("rope_parameters", {"rope_type": "spiral", "rope_theta": 1e4}, "spiral"),
        ("rope_parameters", {"rope_type": "default", "rope_theta": float("inf")}, "rope_theta"),
        ("rope_parameters", [1], "rope_parameters"),
        ("hidden_act", "explode", "explode"),
        ("layer_types", ["unknown"] * 2, "layer_types"),
        ("model_type", "x" * 10**5, "model_type is"),
        ("eos_token_id", [2] * 10**5 + ["x"], "eos_token_id"),
        ("dtype", "float1024", "dtype"),
    ],
)
def test_a_value_that_cannot_be_is_named(model: Path, name: str, value: Any, problem: str) -> None:
    edit(model, **{name: value})
    found = refusal(model)
    assert problem in found
    assert str(model / "config.json") in found


@pytest.mark.parametrize(
    ("name", "value"), [("n_layer", 10**6), ("n_embd", -16), ("n_head", 0), ("n_positions", 10**30)]
)
def test_sizes_are_checked_by_the_names_of_the_architecture(
    tmp_path: Path, name: str, value: int
) -> None:
    directory = write_model(tmp_path / "m", "gpt2", n_embd=64, n_layer=1, n_head=2, n_positions=8)
    edit(directory, **{name: value})
    assert f"config.json: {name} is {value}" in refusal(directory)


def test_what_a_model_computes_when_it_is_built_has_a_bound(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hugging_face, "MOST_BUFFER_BYTES", 8)
    assert "bytes of buffers; correct its positions" in refusal(model)


@pytest.mark.parametrize(
    ("name", "value"),
    [("vocabulary", 10**30), ("width", "64"), ("heads", 0), ("layers", 10**6), ("eos", 0.5)],
)
def test_sizes_of_the_built_in_decoder_are_checked(tmp_path: Path, name: str, value: Any) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"kind": "tiny", name: value}))
    assert name in refusal(tmp_path)


@pytest.mark.parametrize(
    "text",
    ["[" * 10**5, '{"a":' * 10**5, '{"model_type": NaN}', '{"a": ' + "9" * 10**4 + "}", "\udcff"],
)
def test_json_that_harms_readers_is_refused(model: Path, text: str) -> None:
    for name in ("config.json", "generation_config.json"):
        kept = (model / name).read_bytes()
        (model / name).write_bytes(text.encode(errors="surrogateescape"))
        assert str(model / name) in refusal(model)
        (model / name).write_bytes(kept)


def header(content: dict[str, Any] | str, size: int | None = None, data: bytes = b"") -> bytes:
    text = (content if isinstance(content, str) else json.dumps(content)).encode()
    return struct.pack("<Q", len(text) if size is None else size) + text + data


def tensor(*offsets: int, shape: tuple[int, ...] = (1,)) -> dict[str, Any]:
    return {"dtype": "F32", "shape": list(shape), "data_offsets": list(offsets)}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x01",
        header({}, size=2**63 - 1),
        header({"a": tensor(0, 4)}, size=1000),
        header({"a": tensor(0, 4), "b": tensor(2, 6)}, data=bytes(8)),
        header({"a": tensor(0, 4)}),
        header({"a": tensor(0, 2**62, shape=(2**60,))}),
        header({"a": tensor(4, 0)}, data=bytes(4)),
        header({"a": tensor(0, 4, shape=(2**40, 2**40))}, data=bytes(4)),
        header('{"a":' * 10**5),
        header("[]"),
    ],
)
def test_a_header_that_lies_is_refused(model: Path, content: bytes) -> None:
    (model / "model.safetensors").write_bytes(content)
    found = refusal(model)
    assert f"{model / 'model.safetensors'} is not a whole safetensors file" in found


def test_a_header_of_a_million_tensors_is_not_read(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weight_files, "MAX_HEADER_BYTES", 1 << 16)
    many = {f"t{number}": tensor(4 * number, 4 * number + 4) for number in range(2000)}
    (model / "model.safetensors").write_bytes(header(many, data=bytes(8000)))
    assert "is not a whole safetensors file (a header of" in refusal(model)


@pytest.mark.parametrize("name", ["../outside.safetensors", "/etc/hostname", "a/../b"])
def test_an_index_names_files_beside_it(model: Path, name: str) -> None:
    (model / "model.safetensors").unlink()
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    assert "has no weight_map from tensors to files beside it" in refusal(model)


def link_outside(path: Path) -> None:
    target = path.parent.parent / "outside"
    target.write_text("{}")
    path.symlink_to(target)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer_config.json"])
@pytest.mark.parametrize("make", [link_outside, device, os.mkfifo])
def test_files_of_a_model_are_regular_and_its_own(
    model: Path, make: Callable[[Path], None], name: str
) -> None:
    (model / name).unlink()
    make(model / name)
    assert f"'{model / name}' " in refusal(model)


def test_links_of_the_hubs_cache_are_followed(model: Path, tmp_path: Path) -> None:
    cache = tmp_path / "models--org--name"
    snapshot = cache / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (cache / "blobs").mkdir()
    for file in model.iterdir():
        file.rename(cache / "blobs" / file.name)
        (snapshot / file.name).symlink_to(f"../../blobs/{file.name}")
    assert open_model(str(snapshot)).build().get_parameter("lm_head.weight").dtype == torch.float32


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[" * 10**5,
        "{}",
        '{"model": {"type": "BPE", "vocab": [], "merges": {}}}',
        '{"version": "1.0", "model": {"type": "WordLevel", "vocab": {"a": -1}, "unk_token": 1}}',
        '{"version": "1.0", "model": {"type": "Unigram", "unk_id": 99, "vocab": []}}',
    ],
)
def test_a_tokenizer_of_another_form_is_refused(model: Path, text: str) -> None:
    (model / "tokenizer.json").write_text(text)
    with pytest.raises(SpecError, match=r"the tokenizer in '.*'|cannot read the tokenizer"):
        open_tokenizer(open_model(str(model)))


def test_code_of_a_tokenizer_is_not_run_whatever_a_terminal_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Where transformers has a tokenizer of its own for an architecture, as for most, it takes that.
    model, ran = write_tiny_model(tmp_path / "model", "llama"), tmp_path / "ran"
    (model / "evil.py").write_text(f"open({str(ran)!r}, 'w').close()\nclass T: pass\n")
    file = model / "tokenizer_config.json"
    own = {"tokenizer_class": "T", "auto_map": {"AutoTokenizer": ["evil.T", "evil.T"]}}
    file.write_text(json.dumps(json.loads(file.read_text()) | own))
    theirs, ours = os.openpty()
    os.write(theirs, b"y\n" * 8)
    with os.fdopen(ours) as terminal:
        monkeypatch.setattr("sys.stdin", terminal)
        with pytest.raises(SpecError, match="code that the directory brings, which is never run"):
            open_tokenizer(open_model(str(model)))
    os.close(theirs)
    assert not ran.exists()
