"""What only a supervised trainer sees to be wrong: it names the field and what to do."""

from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch

from rollcall_plugins.trainers.supervised.run import SupervisedJob, SupervisedRank
from rollcall_protocol.job_config import CheckpointConfig
from rollcall_protocol.pod_contract import ExitCode
from rollcall_protocol.supervised_config import SupervisedConfig
from rollcall_runtime.train.checkpoint import files
from rollcall_runtime.train.engines.fsdp2 import Fsdp2Engine
from rollcall_runtime.train.process_group import TrainerRendezvous
from tests.process.engines.tiny_models import LETTERS, write_tiny_model
from tests.unit.rollcall_runtime.bad_input.case import (
    Case,
    Changes,
    ends_with_the_field_and_what_to_do,
    rows,
)
from tests.unit.rollcall_runtime.bad_input.cases import not_a_number
from tests.unit.rollcall_runtime.jobs import job_config
from tests.unit.rollcall_runtime.train.supervised_data import MODEL, reverse_answers


def broken_held_out_rows(folder: Path) -> Changes:
    held_out = rows(folder, {"tokens": [3], "completion": [4]}, "[]", name="held-out.jsonl")
    return supervised(folder, evaluation=held_out)


def weight_that_is_nan(folder: Path) -> Changes:
    return {**supervised(folder), **not_a_number(folder)}


def half_a_row_to_learn(folder: Path) -> Changes:
    data = rows(folder, {"tokens": [3], "completion": [4]}, {"tokens": [3]})
    return {**supervised(folder), "data": data}


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
    path = files.checkpoint_path(folder / "checkpoints", 1)
    files.begin_checkpoint(path)
    (files.scratch_path(path) / "weights").write_bytes(b"in a form of its own")
    files.commit_checkpoint(path, state={"step": 1})
    checkpoint = CheckpointConfig(1, str(folder / "checkpoints"))
    return {**supervised(folder), "checkpoint": checkpoint}


OTHER_CHECKPOINT = ("name another volume, empty this one, or correct model, engine",)


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
    Case(
        "half a row to learn",
        ("spec.data.prompts", "rows.jsonl:2: there is no column 'completion'"),
        half_a_row_to_learn,
    ),
    Case(
        "half a file of held-out rows",
        ("spec.supervised.evaluation.source.name", "held-out.jsonl:2: wants an object"),
        broken_held_out_rows,
    ),
    Case(
        "a weight that is NaN",
        ("spec.model.path", "model.safetensors: model.layers.1.mlp.up_proj.weight holds NaN"),
        weight_that_is_nan,
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


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_worker_ends_with_the_field_and_what_to_do(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ends_with_the_field_and_what_to_do(case, tmp_path, monkeypatch, caplog)
