"""An exported directory is a model of its own, for `open_model` as for transformers."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
)

from rollcall_runtime.models.export import export_model
from rollcall_runtime.models.model_source import Head, ModelSource
from rollcall_runtime.models.open_model import open_model
from tests.process.engines.tiny_models import ARCHITECTURES, Architecture, write_tiny_model

TOKENS = torch.randint(0, 100, (2, 9), generator=torch.Generator().manual_seed(0))


def trained(source: ModelSource, head: Head = "language-model") -> nn.Module:
    """A model whose weights are no longer the source's."""
    model = source.build(head=head).requires_grad_(requires_grad=False)
    generator = torch.Generator().manual_seed(5)
    for parameter in model.parameters():
        parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.05)
    return model


@pytest.mark.parametrize("file_bytes", [10**9, 100_000], ids=["one file", "sharded"])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_transformers_loads_it_with_equal_logits(
    tmp_path: Path, architecture: Architecture, tied: bool, file_bytes: int
) -> None:
    source = open_model(str(write_tiny_model(tmp_path / "m", architecture, tied=tied)))
    model = trained(source)
    export_model(source, model.named_parameters(), tmp_path / "out", file_bytes=file_bytes)
    library = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert torch.equal(library(TOKENS).logits, model(TOKENS).logits)
    again = open_model(str(tmp_path / "out")).build()
    assert torch.equal(again(TOKENS).logits, model(TOKENS).logits)
    files = list((tmp_path / "out").glob("*.safetensors"))
    assert (len(files) > 1) is (file_bytes < 10**9)
    names = [name for file in files for name in load_file(file)]
    assert ("lm_head.weight" in names) is not tied, "a tied tensor is written once"


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o027, 0o640)])
@pytest.mark.parametrize("file_bytes", [10**9, 100_000], ids=["one file", "sharded"])
def test_all_files_have_the_mode_that_the_umask_gives(
    tmp_path: Path, umask: int, mode: int, file_bytes: int
) -> None:
    source = open_model(str(write_tiny_model(tmp_path / "m")))
    weights = trained(source).named_parameters()
    before = os.umask(umask)
    try:
        export_model(source, weights, tmp_path / "out", file_bytes=file_bytes)
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "out").iterdir()}
    assert set(modes.values()) == {mode}, modes


def test_the_tokenizer_and_the_settings_of_generation_come_along(tmp_path: Path) -> None:
    directory = write_tiny_model(tmp_path / "m")
    source = open_model(str(directory))
    export_model(source, trained(source).named_parameters(), tmp_path / "out")
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        assert (tmp_path / "out" / name).read_bytes() == (directory / name).read_bytes()
    before, after = (AutoTokenizer.from_pretrained(path) for path in (directory, tmp_path / "out"))
    assert after.chat_template == before.chat_template
    assert after.encode("a b") == before.encode("a b")


def test_the_configuration_says_the_dtype_and_keeps_the_rest(tmp_path: Path) -> None:
    directory = write_tiny_model(tmp_path / "m")
    source = open_model(str(directory))
    export_model(source, trained(source).named_parameters(), tmp_path / "out", dtype=torch.bfloat16)
    before, after = (
        json.loads((path / "config.json").read_text()) for path in (directory, tmp_path / "out")
    )
    assert after == before | {"dtype": "bfloat16"}
    stored = load_file(tmp_path / "out" / "model.safetensors")
    assert {tensor.dtype for tensor in stored.values()} == {torch.bfloat16}


def test_the_dtype_has_the_name_by_which_the_source_had_it(tmp_path: Path) -> None:
    file = write_tiny_model(tmp_path / "m") / "config.json"
    values = json.loads(file.read_text())
    values["torch_dtype"] = values.pop("dtype")
    file.write_text(json.dumps(values))
    source = open_model(str(tmp_path / "m"))
    assert source.config_json(head="language-model", dtype=torch.bfloat16) == values | {
        "torch_dtype": "bfloat16"
    }


@pytest.mark.parametrize(
    ("head", "library"),
    [
        ("value", AutoModelForTokenClassification),
        ("sequence-classification", AutoModelForSequenceClassification),
    ],
)
def test_other_heads_are_exported_as_what_transformers_calls_them(
    tmp_path: Path, head: Head, library: type
) -> None:
    source = open_model(str(write_tiny_model(tmp_path / "m")))
    model = trained(source, head)
    export_model(source, model.named_parameters(), tmp_path / "out", head=head)
    row = TOKENS[:1]  # several would need a pad token
    loaded = library.from_pretrained(tmp_path / "out")  # type: ignore[attr-defined]
    again = open_model(str(tmp_path / "out")).build(head=head)
    # Rounding may differ with the place of a tensor in memory, which a mapped file decides.
    torch.testing.assert_close(loaded(row).logits, model(row).logits, atol=1e-6, rtol=0)
    torch.testing.assert_close(again(row).logits, model(row).logits, atol=1e-6, rtol=0)


def test_the_built_in_decoder_is_exported_in_the_same_form(tmp_path: Path) -> None:
    source = open_model("builtin:reverse-tiny")
    model = trained(source)
    export_model(source, model.named_parameters(), tmp_path / "out")
    assert {p.name for p in (tmp_path / "out").iterdir()} == {"config.json", "model.safetensors"}
    again = open_model(str(tmp_path / "out"))
    assert (again.vocabulary, again.positions, again.named_eos) == (13, 13, frozenset({2}))
    tokens = TOKENS % 13
    assert torch.equal(again.build()(tokens), model(tokens))


def test_a_directory_that_is_there_is_left_alone(tmp_path: Path) -> None:
    source = open_model("builtin:reverse-tiny")
    (tmp_path / "out").mkdir()
    with pytest.raises(FileExistsError, match="is there already"):
        export_model(source, trained(source).named_parameters(), tmp_path / "out")
    assert list(tmp_path.iterdir()) == [tmp_path / "out"]


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([], "not given: blocks.0"),
        ([("outsider", torch.zeros(1))], r"outsider \(1,\) is not the model's"),
        ([("embed.weight", torch.zeros(13, 3))], r"embed.weight \(13, 3\) .*: \(13, 64\)"),
        ([("embed.weight", torch.zeros(13, 64))] * 2, r"embed.weight \(13, 64\) .*: None"),
    ],
)
def test_tensors_of_another_model_leave_nothing_behind(
    tmp_path: Path, weights: list[tuple[str, torch.Tensor]], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        export_model(open_model("builtin:reverse-tiny"), weights, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_it_appears_only_when_all_is_written(tmp_path: Path) -> None:
    source = open_model("builtin:reverse-tiny")
    seen: list[bool] = []

    def watched() -> Iterator[tuple[str, torch.Tensor]]:
        for item in trained(source).named_parameters():
            seen.append((tmp_path / "out").exists())
            yield item

    export_model(source, watched(), tmp_path / "out", file_bytes=10_000)
    assert not any(seen)
    assert (tmp_path / "out" / "config.json").is_file()
