"""The mistakes: models, tokenizers, data, checkpoints, engines, memory."""

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from rollcall_protocol.job_config import EngineRef, EvaluationConfig
from tests.process.engines.tiny_models import LETTERS, POSITIONS, write_tiny_model
from tests.unit.rollcall_runtime.bad_input.case import Case, Changes, edit, rows
from tests.unit.rollcall_runtime.jobs import pool_config

INDEX = "model.safetensors.index.json"
CHAT = {"messages": [{"role": "user", "content": "hi"}]}


# --- models -------------------------------------------------------------------------------------


def model_of_several_files(folder: Path) -> Path:
    return write_tiny_model(folder / "model", shard_bytes=100_000)


def missing_shard(folder: Path) -> Changes:
    model = model_of_several_files(folder)
    sorted(model.glob("model-*.safetensors"))[1].unlink()
    return {"model": str(model)}


def wrong_index(folder: Path) -> Changes:
    model = model_of_several_files(folder)
    files = json.loads((model / INDEX).read_text())["weight_map"]
    other = next(file for file in files.values() if file != files["model.norm.weight"])
    edit(model / INDEX, weight_map={**files, "model.norm.weight": other})
    return {"model": str(model)}


def truncated_file(folder: Path) -> Changes:
    model = write_tiny_model(folder / "model")
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    return {"model": str(model)}


def not_a_number(folder: Path) -> Changes:
    """In the last row of one tensor."""
    model = write_tiny_model(folder / "model")
    weights = load_file(model / "model.safetensors")
    weights["model.layers.1.mlp.up_proj.weight"][-1, -1] = math.nan
    save_file(weights, model / "model.safetensors", {"format": "pt"})
    return {"model": str(model)}


def quantized(folder: Path) -> Changes:
    model = write_tiny_model(folder / "model")
    edit(model / "config.json", quantization_config={"quant_method": "gptq", "bits": 4})
    return {"model": str(model)}


def unknown_architecture(folder: Path) -> Changes:
    model = write_tiny_model(folder / "model")
    edit(model / "config.json", model_type="qwen9")
    return {"model": str(model)}


MODELS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "a missing file of the weights": (
        missing_shard,
        ("spec.model.path", "model-00002-of-", "is missing", "copy the whole model"),
    ),
    "an index that names another file": (
        wrong_index,
        ("spec.model.path", INDEX, "holds no such tensor", "copy index and files from one model"),
    ),
    "a truncated file of weights": (
        truncated_file,
        ("spec.model.path", "model.safetensors", "not a whole safetensors file", "copy it again"),
    ),
    "a weight that is NaN": (
        not_a_number,
        (
            "spec.model.path",
            "model.safetensors: model.layers.1.mlp.up_proj.weight holds NaN",
            "copy the model again",
        ),
    ),
    "quantized weights": (
        quantized,
        ("spec.model.path", "has a quantization_config ('gptq')", "name an unquantized copy"),
    ),
    "an architecture that does not exist": (
        unknown_architecture,
        ("spec.model.path", "config.json: model_type is 'qwen9'", "tested are llama"),
    ),
}
TRANSFORMERS = pool_config(engine=EngineRef("transformers"))


# --- tokenizers and data ------------------------------------------------------------------------


def no_chat_template(folder: Path) -> Changes:
    model = write_tiny_model(folder / "model")
    (model / "chat_template.jinja").unlink()
    return {"model": str(model), "data": rows(folder, CHAT)}


def another_tokenizer(folder: Path) -> Changes:
    model = write_tiny_model(folder / "model", characters=LETTERS)
    larger = write_tiny_model(folder / "larger")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (model / name).write_bytes((larger / name).read_bytes())
    return {"model": str(model), "data": rows(folder, {"prompt": "ab"})}


def longer_than_the_context(folder: Path) -> Changes:
    model = write_tiny_model(folder / "model")
    return {
        "model": str(model),
        "data": rows(folder, {"tokens": [3]}, {"tokens": [3] * POSITIONS}),
    }


def empty_file(folder: Path) -> Changes:
    return {"data": rows(folder)}


def half_a_line(folder: Path) -> Changes:
    return {"data": rows(folder, {"tokens": [3]}, {"tokens": [4]}, '{"tokens": [5')}


def broken_held_out_prompts(folder: Path) -> Changes:
    held_out = rows(folder, {"tokens": [3]}, "not JSON", name="held-out.jsonl")
    return {"evaluation": EvaluationConfig(every_steps=1, data=held_out)}


# --- engines ------------------------------------------------------------------------------------


def without(package: str, engine: str) -> Any:
    """The package is not in the image."""

    def spoil(monkeypatch: pytest.MonkeyPatch) -> None:
        for name in list(sys.modules):
            if name.startswith((f"{engine}.", f"{package}.")) or name == engine:
                monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, package, None)

    return spoil


CASES: tuple[Case, ...] = (
    *(Case(name, says, make) for name, (make, says) in MODELS.items()),
    *(
        Case(f"{name}, of a rollout", says, make, worker="rollout", pool=TRANSFORMERS)
        for name, (make, says) in MODELS.items()
    ),
    Case(
        "a tokenizer without a chat template",
        ("spec.model.path", "has no chat template", "add chat_template.jinja", "text or tokens"),
        no_chat_template,
    ),
    Case(
        "another model's tokenizer",
        ("spec.model.path", "it is another model's", "copy model and tokenizer from one place"),
        another_tokenizer,
    ),
    Case(
        "a prompt that is longer than the context",
        ("spec.data.prompts", "rows.jsonl:2: 256 tokens", "shorten it, or set spec.data.tooLong"),
        longer_than_the_context,
    ),
    Case(
        "a file without rows",
        ("spec.data.prompts", "rows.jsonl' holds no row", "name a file that has some"),
        empty_file,
    ),
    Case(
        "half a line",
        ("spec.data.prompts", "rows.jsonl:3: not JSON", "correct it"),
        half_a_line,
    ),
    Case(
        "half a file of held-out prompts",
        ("spec.evaluation.source.name", "held-out.jsonl:2: not JSON", "correct it"),
        broken_held_out_prompts,
    ),
    Case(
        "a training engine whose package is missing",
        ("spec.trainer.engine.name", "'torchtitan'", "an image that has what it needs"),
        lambda _: {"trainer_engine": EngineRef("torchtitan")},
        breaks=without("torchtitan", "rollcall_plugins.trainers.torchtitan"),
    ),
    Case(
        "a weight-sync engine whose package is missing",
        ("spec.weightSync.engine", "'ray'", "an image that has what it needs"),
        lambda _: {"weight_sync": {"engine": "ray"}},
        worker="rollout",
        breaks=without("ray", "rollcall_plugins.transports.ray"),
    ),
    Case(
        "an inference engine whose package is missing",
        ("spec.rollouts[].engine.name", "'transformers'", "an image that has what it needs"),
        lambda _: {},
        worker="rollout",
        pool=TRANSFORMERS,
        breaks=without("transformers", "rollcall_runtime.rollout.engines.transformers_engine"),
    ),
)
