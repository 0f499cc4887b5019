"""Steps that are skipped are counted and kept, and too many in a row end training."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from rollcall_protocol.job_config import HealthConfig
from rollcall_runtime.train.health import KEPT_BATCHES, TrainingHealth
from rollcall_runtime.train.roles.model_update import ModelUpdate
from rollcall_runtime.worker.errors import SpecError
from tests.unit.rollcall_runtime.train.roles.bigram_engine import sample_batch

BATCH = sample_batch([0.0, 1.0])


def update(
    metrics: dict[str, float] | None = None, *, skipped: str = "", loss: float = 0.5
) -> ModelUpdate:
    return ModelUpdate(
        loss=loss,
        gradient_norm=math.nan if skipped else 1.0,
        learning_rate=1e-3,
        tokens=3,
        metrics=metrics or {},
        skipped=skipped,
    )


GOOD, BAD = update(), update(skipped="not-finite", loss=math.nan)


def health(folder: Path | None = None, **config: Any) -> TrainingHealth:
    return TrainingHealth(HealthConfig(**config), folder=folder, rank=0)


def test_one_skipped_update_makes_a_skipped_step() -> None:
    found = health()
    found.step_ended(1, [GOOD, BAD], BATCH)
    assert found.skipped == 1
    assert "step 1 was skipped" in found.problem
    found.step_ended(2, [GOOD, GOOD], BATCH)
    assert (found.skipped, found.problem) == (1, "")


def test_nothing_to_learn_is_no_problem() -> None:
    found = health(max_skipped_steps=1)
    found.step_ended(1, [update(skipped="no-gradient")], BATCH)
    assert (found.skipped, found.problem) == (0, "")


def test_too_many_in_a_row_end_training_and_name_the_setting(tmp_path: Path) -> None:
    found = health(tmp_path, max_skipped_steps=3)
    for step in (1, 2):
        found.step_ended(step, [BAD], BATCH)
    found.step_ended(3, [GOOD], BATCH)
    for step in (4, 5):
        found.step_ended(step, [BAD], BATCH)
    with pytest.raises(SpecError) as caught:
        found.step_ended(6, [BAD], BATCH)
    message = str(caught.value)
    assert message.startswith("spec.health.maxSkippedSteps: the last 3 steps, up to step 6, were")
    assert "spec.algorithm.optimizer.learningRate" in message
    assert str(tmp_path) in message


def test_the_batch_of_a_skipped_step_is_kept(tmp_path: Path) -> None:
    health(tmp_path / "kept").step_ended(7, [BAD], BATCH)
    (path,) = (tmp_path / "kept").glob("*.safetensors")
    assert path.name == "step-00000007-rank-0.safetensors"
    tensors = load_file(path)
    assert torch.equal(tensors["tokens"], BATCH.tokens)
    assert torch.equal(tensors["mask"], BATCH.mask)
    assert torch.equal(tensors["extras.rewards"], BATCH.extras["rewards"])
    (figures,) = json.loads(path.with_suffix(".json").read_text())
    assert figures["loss"] == "nan"
    assert figures["skipped"] == "not-finite"


def test_no_more_than_a_few_batches_are_kept(tmp_path: Path) -> None:
    found = health(tmp_path, max_skipped_steps=100)
    for step in range(KEPT_BATCHES + 3):
        found.step_ended(step, [BAD], BATCH)
    names = sorted(path.name for path in tmp_path.glob("*.safetensors"))
    assert names == [f"step-{step:08d}-rank-0.safetensors" for step in range(KEPT_BATCHES)]


def test_each_rank_keeps_as_many(tmp_path: Path) -> None:
    for rank in (0, 1):
        found = TrainingHealth(HealthConfig(max_skipped_steps=100), folder=tmp_path, rank=rank)
        for step in range(KEPT_BATCHES):
            found.step_ended(step, [BAD], BATCH)
    assert len(list(tmp_path.glob("*.safetensors"))) == 2 * KEPT_BATCHES


def test_a_folder_that_cannot_be_written_costs_the_copy_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    found = health(tmp_path / "file" / "folder")
    found.step_ended(1, [BAD], BATCH)
    assert found.skipped == 1
    assert "cannot write the batch of step 1" in caplog.text


@pytest.mark.parametrize(
    ("metric", "setting", "field"),
    [
        ("mismatch_kl", "max_mismatch_kl", "spec.health.maxMismatchKl is 0.1"),
        ("mismatch_ratio", "max_mismatch_ratio", "spec.health.maxMismatchRatio is 0.1"),
    ],
)
def test_a_mismatch_above_its_limit_is_a_problem_until_it_is_gone(
    metric: str, setting: str, field: str
) -> None:
    limits: dict[str, Any] = {setting: 0.1}
    found = health(**limits)
    found.step_ended(3, [update({metric: 0.25}), GOOD], BATCH)
    assert f"{metric} is 0.25 at step 3" in found.problem
    assert field in found.problem
    found.step_ended(4, [update({metric: 0.05}), update({metric: 9.0})], BATCH)
    assert found.problem == "", "later updates compare another policy"


def test_a_mismatch_that_is_no_number_is_a_problem() -> None:
    found = health(max_mismatch_kl=0.1)
    found.step_ended(1, [update({"mismatch_kl": math.nan})], BATCH)
    assert "mismatch_kl is nan" in found.problem


def test_without_a_limit_no_mismatch_is_a_problem() -> None:
    found = health()
    found.step_ended(1, [update({"mismatch_kl": 9.0, "mismatch_ratio": 99.0})], BATCH)
    assert found.problem == ""


def test_a_step_without_updates_is_sound() -> None:
    found = health(max_mismatch_kl=0.1)
    found.step_ended(1, [], BATCH)
    assert (found.skipped, found.problem) == (0, "")
