"""The mistakes: models, tokenizers, data, checkpoints, engines, memory."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch

from rollcall_plugins.trainers.supervised.run import SupervisedJob, SupervisedRank
from rollcall_protocol.data_config import DataConfig, DataSource
from rollcall_protocol.job_config import CheckpointConfig, EngineRef, EvaluationConfig
from rollcall_protocol.pod_contract import ExitCode
from rollcall_protocol.supervised_config import SupervisedConfig
from rollcall_runtime.train.engines.fsdp2 import Fsdp2Engine
from rollcall_runtime.train.process_group import TrainerRendezvous
from tests.process.engines.tiny_models import LETTERS, POSITIONS, write_tiny_model
from tests.unit.rollcall_runtime.bad_input.case import Case, Changes, edit
from tests.unit.rollcall_runtime.jobs import job_config, pool_config
from tests.unit.rollcall_runtime.train.supervised_data import MODEL, reverse_answers

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
    "an architecture that does not exist": (
        unknown_architecture,
        ("spec.model.path", "config.json: model_type is 'qwen9'", "tested are llama"),
    ),
}
TRANSFORMERS = pool_config(engine=EngineRef("transformers"))


# --- tokenizers and data ------------------------------------------------------------------------


def rows(folder: Path, *values: object, name: str = "rows.jsonl") -> DataConfig:
    """A file with these lines: objects as JSON, text as it is."""
    lines = [value if isinstance(value, str) else json.dumps(value) for value in values]
    (folder / name).write_text("".join(f"{line}\n" for line in lines))
    return DataConfig((DataSource(str(folder / name)),))


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


def broken_held_out_rows(folder: Path) -> Changes:
    held_out = rows(folder, {"tokens": [3], "completion": [4]}, "[]", name="held-out.jsonl")
    return supervised(folder, evaluation=held_out)


def half_a_row_to_learn(folder: Path) -> Changes:
    data = rows(folder, {"tokens": [3], "completion": [4]}, {"tokens": [3]})
    return {**supervised(folder), "data": data}


# --- checkpoints --------------------------------------------------------------------------------


def supervised(folder: Path, **config: Any) -> Changes:
    """A good job of two steps."""
    return {
        "data": reverse_answers(folder / "answers.jsonl", rows=8),
        "supervised": SupervisedConfig(rows_per_step=4, max_steps=2, **config),
    }


def with_a_checkpoint(folder: Path, changes: Changes) -> Changes:
    """`changes`, to be resumed from a checkpoint of the good job."""
    good = job_config(
        **supervised(folder), checkpoint=CheckpointConfig(1, str(folder / "checkpoints"))
    )
    assert good.supervised is not None
    rank = SupervisedRank(
        SupervisedJob(
            model=MODEL,
            data=good.data,
            config=replace(good.supervised, max_steps=1),
            engine=good.trainer_engine,
            checkpoint=good.checkpoint,
            trainer="before",
        ),
        TrainerRendezvous(),
        device="cpu",
    )
    rank.start()
    rank.run(lambda _: None, lambda: False)
    rank.close()
    return {**supervised(folder), "checkpoint": good.checkpoint, **changes}


def checkpoint_of_another_model(folder: Path) -> Changes:
    model = write_tiny_model(folder / "model", characters=LETTERS)
    return with_a_checkpoint(folder, {"model": str(model)})


def checkpoint_of_an_unknown_engine(folder: Path) -> Changes:
    from rollcall_runtime.train.checkpoint import files  # noqa: PLC0415

    path = files.checkpoint_path(folder / "checkpoints", 1)
    files.begin_checkpoint(path)
    (files.scratch_path(path) / "weights").write_bytes(b"in a form of its own")
    files.commit_checkpoint(path, state={"step": 1})
    checkpoint = CheckpointConfig(1, str(folder / "checkpoints"))
    return {**supervised(folder), "checkpoint": checkpoint}


OTHER_CHECKPOINT = ("name another volume, empty this one, or correct model, engine",)


# --- engines and memory -------------------------------------------------------------------------


def without(package: str, engine: str) -> Any:
    """The package is not in the image."""

    def spoil(monkeypatch: pytest.MonkeyPatch) -> None:
        for name in list(sys.modules):
            if name.startswith((f"{engine}.", f"{package}.")) or name == engine:
                monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, package, None)

    return spoil


def runs_out_of_memory(error: str | None) -> Any:
    """Computing fails with this error of a device, or for real in the host's memory."""

    def fail(*_: object) -> NoReturn:
        if error is not None:
            raise torch.OutOfMemoryError(error)
        torch.empty(1 << 60)
        raise AssertionError("so much memory there is nowhere")

    return lambda monkeypatch: monkeypatch.setattr(Fsdp2Engine, "forward_backward", fail)


CUDA = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB"
MICROBATCH = "spec.trainer.engine.config.maxTokensPerMicrobatch"

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
        "half a row to learn",
        ("spec.data.prompts", "rows.jsonl:2: there is no column 'completion'"),
        half_a_row_to_learn,
    ),
    Case(
        "half a file of held-out prompts",
        ("spec.evaluation.source.name", "held-out.jsonl:2: not JSON", "correct it"),
        broken_held_out_prompts,
    ),
    Case(
        "half a file of held-out rows",
        ("spec.supervised.evaluation.source.name", "held-out.jsonl:2: wants an object"),
        broken_held_out_rows,
    ),
    Case(
        "a checkpoint of another model",
        ("spec.trainer.checkpoint.volume", "is of another model", *OTHER_CHECKPOINT),
        checkpoint_of_another_model,
    ),
    Case(
        "a checkpoint of an engine with another form",
        ("spec.trainer.checkpoint.volume", "of a training engine with another form"),
        checkpoint_of_an_unknown_engine,
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
    Case(
        "a device without enough memory",
        (MICROBATCH, "2.00 GiB more", "activationCheckpointing: full", "offload: optimizer"),
        supervised,
        code=ExitCode.OUT_OF_MEMORY,
        breaks=runs_out_of_memory(CUDA),
    ),
    Case(
        "a container without enough memory",
        (MICROBATCH, "bytes more", "activationCheckpointing: full", "resources.limits.memory"),
        supervised,
        code=ExitCode.OUT_OF_MEMORY,
        breaks=runs_out_of_memory(None),
    ),
)
