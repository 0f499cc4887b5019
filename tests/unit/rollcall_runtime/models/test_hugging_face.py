"""A model in Hugging Face's format is built as transformers builds it, with less memory."""

import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from rollcall_runtime.models.open_model import open_model
from rollcall_runtime.worker.errors import SpecError
from tests.process.engines.tiny_models import ARCHITECTURES, Architecture, write_tiny_model

TOKENS = torch.randint(0, 100, (3, 17), generator=torch.Generator().manual_seed(0))


def logits(model: nn.Module) -> Tensor:
    with torch.no_grad():
        found: Tensor = model(TOKENS).logits
    return found


def edit(directory: Path, **change: Any) -> None:
    file = directory / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))


def refusal(directory: Path, **arguments: Any) -> str:
    with pytest.raises(SpecError) as caught:
        open_model(str(directory)).build(**arguments)
    assert caught.value.field == "spec.model.path"
    return caught.value.problem


@pytest.mark.parametrize("shard_bytes", [None, 100_000], ids=["one file", "sharded"])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_logits_are_those_of_transformers_own_load(
    tmp_path: Path, architecture: Architecture, tied: bool, shard_bytes: int | None
) -> None:
    directory = write_tiny_model(tmp_path / "m", architecture, tied=tied, shard_bytes=shard_bytes)
    source = open_model(str(directory))
    assert (source.architecture, source.vocabulary, source.positions) == (architecture, 104, 256)
    built = source.build()
    assert torch.equal(logits(built), logits(AutoModelForCausalLM.from_pretrained(directory)))
    assert not built.training
    assert len(dict(built.named_parameters())) == len(source.weights().shapes)


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_come_in_the_dtype_that_is_asked_for(
    tmp_path: Path, stored: torch.dtype, dtype: torch.dtype
) -> None:
    directory = write_tiny_model(tmp_path / "m", dtype=stored)
    built = open_model(str(directory)).build(dtype=dtype)
    assert {parameter.dtype for parameter in built.parameters()} == {dtype}
    library = AutoModelForCausalLM.from_pretrained(directory, dtype=dtype)
    assert torch.equal(logits(built), logits(library))


@pytest.mark.skipif(
    transformers.__version__ < "5", reason="4.57 itself passes over rope_parameters"
)
def test_other_scalings_of_positions_are_computed_too(tmp_path: Path) -> None:
    directory = write_tiny_model(tmp_path / "m", "llama")
    scaling = {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    before = logits(open_model(str(directory)).build())
    edit(directory, rope_parameters=scaling)
    built = logits(open_model(str(directory)).build())
    assert not torch.equal(built, before)
    assert torch.equal(built, logits(AutoModelForCausalLM.from_pretrained(directory)))


LONG_ROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "short_factor": [1.0] * 8,
    "long_factor": [4.0] * 8,
}


@pytest.mark.skipif(
    transformers.__version__ < "5", reason="4.57 itself passes over rope_parameters"
)
def test_of_longrope_positions_are_those_that_every_call_computes_alike(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = write_tiny_model(tmp_path / "m", "llama")
    original = {"original_max_position_embeddings": 32}
    for where in (
        {"rope_parameters": LONG_ROPE | original},
        {"rope_parameters": LONG_ROPE} | original,
    ):
        edit(directory, **where)
        with caplog.at_level(logging.WARNING, logger="rollcall_runtime"):
            source = open_model(str(directory))
        assert source.positions == 32
        assert "positions the first 32 are used (LongRoPE)" in caplog.text
    library = AutoModelForCausalLM.from_pretrained(directory)
    assert torch.equal(logits(source.build()), logits(library))
    edit(directory, rope_parameters=LONG_ROPE | original, original_max_position_embeddings=0)
    assert "original_max_position_embeddings is 0, not a positive number" in refusal(directory)


def test_a_model_is_built_empty_without_memory_for_its_parameters(tmp_path: Path) -> None:
    model = open_model(str(write_tiny_model(tmp_path / "m"))).build_empty()
    assert all(parameter.is_meta for parameter in model.parameters())
    buffers = dict(model.named_buffers())
    assert buffers
    assert not any(buffer.is_meta for buffer in buffers.values())


def test_embeddings_stored_under_the_output_layers_name_alone_are_found(tmp_path: Path) -> None:
    directory = write_tiny_model(tmp_path / "m")
    wanted = logits(open_model(str(directory)).build())
    tensors = load_file(directory / "model.safetensors")
    tensors["lm_head.weight"] = tensors.pop("model.embed_tokens.weight")
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    assert torch.equal(logits(open_model(str(directory)).build()), wanted)


def test_tied_embeddings_that_are_stored_twice_must_be_equal(tmp_path: Path) -> None:
    directory = write_tiny_model(tmp_path / "m", tied=False)
    edit(directory, tie_word_embeddings=True)
    assert "holds model.embed_tokens.weight and lm_head.weight, which differ" in refusal(directory)


def test_a_head_of_values_starts_at_zero_on_the_same_layers(tmp_path: Path) -> None:
    directory = write_tiny_model(tmp_path / "m")
    model = open_model(str(directory)).build(head="value")
    assert torch.equal(logits(model), torch.zeros(3, 17, 1))
    embedding = model.get_parameter("model.embed_tokens.weight")
    stored = load_file(directory / "model.safetensors")
    assert torch.equal(embedding, stored["model.embed_tokens.weight"])


def test_a_head_of_scores_is_seeded(tmp_path: Path) -> None:
    source = open_model(str(write_tiny_model(tmp_path / "m")))
    one, same, other = (
        source.build(head="sequence-classification", seed=seed).get_parameter("score.weight")
        for seed in (1, 1, 2)
    )
    assert one.shape == (1, 64)
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_a_head_that_the_files_hold_is_read(tmp_path: Path) -> None:
    directory = write_tiny_model(tmp_path / "m")
    tensors = load_file(directory / "model.safetensors")
    tensors["score.weight"] = torch.full((1, 64), 0.5)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    model = open_model(str(directory)).build(head="sequence-classification")
    assert torch.equal(model.get_parameter("score.weight"), tensors["score.weight"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"num_hidden_layers": 3},
            r"lack tensors of the model of its config.json: model.layers.2.",
        ),
        ({"num_hidden_layers": 1}, r"hold tensors that the model .* has not: model.layers.1."),
        ({"hidden_size": 128}, r"has the shape \[\d+(, 64)?\], but by the config.json beside it"),
        ({"model_type": "qwen2"}, r"lack tensors .*bias and \d+ more; copy both from one model"),
        ({"tie_word_embeddings": False}, r"lack tensors .*: lm_head.weight; copy both"),
        ({"num_attention_heads": "four"}, r"config.json: .*num_attention_heads"),
    ],
)
def test_files_of_another_model_than_the_configurations_are_refused(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    directory = write_tiny_model(tmp_path / "m", "llama")
    edit(directory, **change)
    assert re.search(message, refusal(directory), re.DOTALL), refusal(directory)


def test_an_architecture_that_is_not_tested_is_built_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = write_tiny_model(tmp_path / "m", "llama")
    edit(directory, model_type="mistral", architectures=["MistralForCausalLM"], head_dim=16)
    with caplog.at_level(logging.WARNING, logger="rollcall_runtime"):
        source = open_model(str(directory))
    assert "mistral is none of the tested architectures (llama, qwen2, qwen3)" in caplog.text
    library = AutoModelForCausalLM.from_pretrained(directory)
    assert torch.equal(logits(source.build()), logits(library))


def test_code_that_a_directory_brings_is_not_run(tmp_path: Path) -> None:
    directory = write_tiny_model(tmp_path / "m")
    (directory / "evil.py").write_text("raise SystemExit('it ran')")
    wanted = logits(open_model(str(directory)).build())
    edit(directory, auto_map={"AutoConfig": "evil.C", "AutoModelForCausalLM": "evil.M"})
    source = open_model(str(directory))
    assert torch.equal(logits(source.build()), wanted)
    exported = source.config_json(head="language-model", dtype=torch.float32)
    assert "auto_map" not in exported, "the code is not there, either"
