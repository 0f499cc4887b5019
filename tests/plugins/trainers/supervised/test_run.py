"""Supervised training on one rank: losses, evaluation, checkpoints, and what it refuses."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file
from torch.nn.functional import cross_entropy

from rollcall_plugins.trainers.supervised.batches import SupervisedBatches
from rollcall_plugins.trainers.supervised.command import _line
from rollcall_plugins.trainers.supervised.run import SupervisedJob, SupervisedRank, SupervisedResult
from rollcall_plugins.trainers.supervised.training import SupervisedStep
from rollcall_protocol.job_config import CheckpointConfig, EngineRef, HealthConfig
from rollcall_protocol.supervised_config import SupervisedConfig
from rollcall_runtime.data.supervised_rows import open_supervised
from rollcall_runtime.models.open_model import open_model
from rollcall_runtime.train.engines.fsdp2 import Fsdp2Engine
from rollcall_runtime.train.health import FOLDER
from rollcall_runtime.train.process_group import TrainerRendezvous
from rollcall_runtime.train.train_engine import OptimizerStep
from rollcall_runtime.worker.errors import SpecError
from tests.unit.rollcall_runtime.data.character_tokenizer import no_tokenizer
from tests.unit.rollcall_runtime.train.supervised_data import MODEL, reverse_answers

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rollcall_protocol.data_config import DataConfig
    from rollcall_runtime.train.train_batch import TrainBatch

ROWS = 24


def job(
    tmp_path: Path,
    *,
    engine: dict[str, Any] | None = None,
    checkpoint: CheckpointConfig | None = None,
    export_path: str = "",
    **config: Any,
) -> SupervisedJob:
    values: dict[str, Any] = {"learning_rate": 1e-3, "rows_per_step": 8, "max_steps": 4}
    return SupervisedJob(
        model=MODEL,
        data=reverse_answers(tmp_path / "rows.jsonl", rows=ROWS),
        config=SupervisedConfig(**values | config),
        engine=EngineRef("fsdp2", engine or {}),
        checkpoint=checkpoint,
        trainer="this",
        export_path=export_path,
    )


def run(
    what: SupervisedJob, stop: Callable[[list[SupervisedStep]], bool] = lambda _: False
) -> tuple[list[SupervisedStep], SupervisedResult]:
    steps: list[SupervisedStep] = []
    rank = SupervisedRank(what, TrainerRendezvous(), "cpu")
    try:
        rank.start()
        return steps, rank.run(steps.append, lambda: stop(steps))
    finally:
        rank.close()


def reference_loss(model: torch.nn.Module, batch: TrainBatch) -> torch.Tensor:
    """The mean over the tokens that are learnt, in plain PyTorch."""
    logits = model(batch.tokens)
    return cross_entropy(logits[batch.mask], batch.targets[batch.mask])


def batches_of(data: DataConfig) -> SupervisedBatches:
    return SupervisedBatches(open_supervised(data, model=no_tokenizer()), 8)


def test_losses_and_evaluation_are_those_of_a_plain_loop(tmp_path: Path) -> None:
    held_out = reverse_answers(tmp_path / "held.jsonl", rows=10, seed=1)
    what = job(tmp_path, evaluation=held_out, evaluate_every=2)
    steps, result = run(what)
    assert (result.finished, result.step) == (True, 4)
    assert [step.evaluation_loss is None for step in steps] == [True, False, True, False]

    model = open_model(MODEL).build(seed=what.data.seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    batches, held = batches_of(what.data), batches_of(held_out)
    for step in steps:
        loss = reference_loss(model, batches.batch(step.step - 1))
        assert step.loss == pytest.approx(loss.item(), abs=1e-5)
        assert step.tokens == 8 * 6
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step.evaluation_loss is not None:
            with torch.no_grad():
                parts = [(reference_loss(model, b).item(), b.rows) for b in held.once()]
            mean = sum(value * rows for value, rows in parts) / sum(rows for _, rows in parts)
            assert step.evaluation_loss == pytest.approx(mean, abs=1e-5)


def test_epochs_are_passes_over_the_rows(tmp_path: Path) -> None:
    steps, result = run(job(tmp_path, max_steps=0, epochs=2, rows_per_step=7))
    assert len(steps) == 8, "24 rows an epoch in three steps of 7 and one of 3"
    assert [step.tokens for step in steps] == [42, 42, 42, 18] * 2
    assert result.counts.read == 48


def test_a_schedule_ends_with_training(tmp_path: Path) -> None:
    steps, _ = run(job(tmp_path, engine={"schedule": "linear", "warmupSteps": 1}))
    rates = [step.learning_rate for step in steps]
    assert rates == pytest.approx([1e-3, 1e-3, 1e-3 * 2 / 3, 1e-3 / 3])


def test_training_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    whole, _ = run(job(tmp_path))
    folder = CheckpointConfig(every_steps=100, path=str(tmp_path / "checkpoints"))
    first, stopped = run(job(tmp_path, checkpoint=folder), stop=lambda steps: len(steps) == 2)
    assert (stopped.finished, stopped.step) == (False, 2)
    rest, result = run(job(tmp_path, checkpoint=folder))
    assert result.finished
    assert [step.loss for step in (*first, *rest)] == [step.loss for step in whole]
    again, result = run(job(tmp_path, checkpoint=folder))
    assert (again, result.finished) == ([], True)


def test_other_data_than_the_checkpoints_are_refused_unless_asked_for(tmp_path: Path) -> None:
    folder = CheckpointConfig(every_steps=100, path=str(tmp_path / "checkpoints"))
    run(job(tmp_path, checkpoint=folder), stop=lambda steps: len(steps) == 2)
    fewer = reverse_answers(tmp_path / "fewer.jsonl", rows=7)
    changed = replace(job(tmp_path, checkpoint=folder), data=fewer)
    with pytest.raises(
        SpecError, match=r"^spec.data: .*'.*fewer.jsonl', of 7 rows, takes the plac"
    ):
        run(changed)
    with pytest.raises(SpecError, match=r"^spec.data: .*rowsPerStep is 4, and was 8; give the da"):
        run(job(tmp_path, checkpoint=folder, rows_per_step=4))
    going_on = replace(changed, checkpoint=replace(folder, other_data="Continue"))
    steps, result = run(going_on)
    assert (len(steps), result.step) == (2, 4)
    run(changed)  # the last checkpoint is of these data


def test_a_step_without_a_loss_is_printed_as_json() -> None:
    step = SupervisedStep(1, 2, math.nan, 0, math.inf, 1e-3, 0.5, skipped="not-finite")
    printed = json.loads(_line(step, as_json=True), parse_constant=pytest.fail)
    assert (printed["loss"], printed["gradient_norm"], printed["step"]) == (None, None, 1)


def test_the_export_is_the_trained_model(tmp_path: Path) -> None:
    what = job(tmp_path, export_path=str(tmp_path / "out"), max_steps=3)
    steps, _ = run(what)
    trained = open_model(str(tmp_path / "out")).build()
    with torch.no_grad():
        loss = reference_loss(trained, batches_of(what.data).batch(0)).item()
    assert loss < steps[0].loss
    with pytest.raises(SpecError, match=r"^spec.trainer.exportPath: .* is there already"):
        run(what)


def test_a_job_that_is_over_is_not_exported_twice(tmp_path: Path) -> None:
    folder = CheckpointConfig(every_steps=100, path=str(tmp_path / "checkpoints"))
    what = job(tmp_path, checkpoint=folder, export_path=str(tmp_path / "out"))
    run(what)
    written = (tmp_path / "out" / "model.safetensors").stat().st_mtime_ns
    steps, result = run(what)
    assert (steps, result.finished) == ([], True), "its pod may start again at any time"
    assert (tmp_path / "out" / "model.safetensors").stat().st_mtime_ns == written


def diverge(monkeypatch: pytest.MonkeyPatch, *, until: int) -> None:
    """The first so many optimizer steps have no finite gradient."""
    tried, step = itertools.count(1), Fsdp2Engine.optimizer_step

    def diverged(engine: Fsdp2Engine) -> OptimizerStep:
        if next(tried) > until:
            return step(engine)
        engine.zero_grad()
        return OptimizerStep(math.nan, 1e-3, "not-finite")

    monkeypatch.setattr(Fsdp2Engine, "optimizer_step", diverged)


def test_a_step_that_is_not_finite_is_skipped_kept_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    diverge(monkeypatch, until=1)
    folder = CheckpointConfig(every_steps=100, path=str(tmp_path / "saved"))
    steps, result = run(job(tmp_path, checkpoint=folder))
    assert (result.finished, steps[0].skipped, steps[1].skipped) == (True, "not-finite", "")
    assert steps[0].warning == "step 1 was skipped: its loss or gradient is not finite"
    assert steps[1].warning == ""
    kept = load_file(tmp_path / "saved" / FOLDER / "step-00000001-rank-0.safetensors")
    assert kept["tokens"].shape[0] == 8


def test_training_that_diverges_ends_with_what_to_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    diverge(monkeypatch, until=40)
    what = replace(job(tmp_path, max_steps=40), health=HealthConfig(max_skipped_steps=3))
    with pytest.raises(SpecError, match=r"^spec.health.maxSkippedSteps: the last 3 steps") as end:
        run(what)
    assert "lower spec.supervised.learningRate" in str(end.value)


def test_what_cannot_work_is_refused_before_a_step(tmp_path: Path) -> None:
    for what, message in (
        (job(tmp_path, engine={"warmupSteps": -1}), "^spec.trainer.engine.config: warmupSteps"),
        (job(tmp_path, optimizer="sgdx"), "unknown optimizer 'sgdx'"),
        (replace(job(tmp_path), model="builtin:none"), "^spec.model.path: "),
        (replace(job(tmp_path), engine=EngineRef("fsdp7")), "^spec.trainer.engine.name: unknown"),
    ):
        with pytest.raises(SpecError, match=message):
            run(what)
