"""Figures go to TensorBoard and Weights & Biases, if the job asks."""

import json
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from rollcall_protocol.job_config import TrackingConfig
from rollcall_protocol.sample_record import SampleRecord, read_records
from rollcall_protocol.step_history import read_rows
from rollcall_runtime.train import tracking as tracking_module
from rollcall_runtime.train.samples.sampled_step import SampledStep
from rollcall_runtime.train.tracking import Tracking
from rollcall_runtime.worker.errors import SpecError
from tests.unit.rollcall_protocol.sample_records import sample_record
from tests.unit.rollcall_runtime.jobs import job_config

HISTORY, SAMPLES = "history.jsonl", "samples.jsonl"


@pytest.fixture(autouse=True)
def _folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def tracking(*, first_step: int = 0, describe: Any = None, **config: str) -> Tracking:
    job = job_config(tracking=TrackingConfig(**config))
    return Tracking(
        job,
        history=Path(HISTORY),
        first_step=first_step,
        samples=Path(SAMPLES) if describe else None,
        describe=describe,
    )


class Describer:
    """Instead of one that decodes tokens: the same responses at each step; none of step 0."""

    def __init__(self, *records: SampleRecord) -> None:
        self._records = list(records)

    def describe(self, sampled: SampledStep) -> list[SampleRecord]:
        if sampled.step == 0:
            raise ValueError("odd tokens")
        return self._records


def sampled(step: int) -> SampledStep:
    return SampledStep(step, 1, 1000.0, (), {})


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    event_accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator"
    )
    events = event_accumulator.EventAccumulator(str(folder)).Reload()
    return {
        tag: [(event.step, round(event.value, 4)) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


def test_a_job_that_asks_for_nothing_has_its_history_alone(tmp_path: Path) -> None:
    found = tracking()
    found.record(1, {"reward/mean": 0.5})
    found.close()
    (file,) = tmp_path.iterdir()
    (row,) = read_rows(file.read_text())
    assert (file.name, row.step, row.figures) == (HISTORY, 1, {"reward/mean": 0.5})


def test_tensorboard_shows_each_figure_by_step(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    found = tracking(folder=str(tmp_path))
    found.record(1, {"reward/mean": 0.25, "actor/grad_norm": 2.0})
    found.record(2, {"reward/mean": 0.5})
    found.close()
    found.close()
    assert scalars(tmp_path) == {
        "reward/mean": [(1, 0.25), (2, 0.5)],
        "actor/grad_norm": [(1, 2.0)],
    }


def test_a_restarted_trainer_replaces_the_steps_that_it_repeats(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    before = tracking(folder=str(tmp_path))
    for step in (1, 2, 3):
        before.record(step, {"reward/mean": 0.1})
    before.close()
    after = tracking(folder=str(tmp_path), first_step=2)
    after.record(2, {"reward/mean": 0.9})
    after.close()
    assert scalars(tmp_path)["reward/mean"] == [(1, 0.1), (2, 0.9)]


@pytest.mark.slow
def test_weights_and_biases_gets_a_run_that_restarts_continue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    found = tracking(wandb_project="reverse")
    found.record(1, {"reward/mean": 0.25})
    found.close()
    (run,) = tmp_path.glob("wandb/offline-run-*")
    assert run.name.endswith("job-uid")


class FakeWandb:
    """The package as far as a tracker calls it."""

    Error = type("Error", (Exception,), {})

    def __init__(self, *, fails: bool = False) -> None:
        self.calls: list[Any] = []
        self._fails = fails

    def Settings(self, **settings: Any) -> dict[str, Any]:  # noqa: N802 - the package's own name
        return settings

    def init(self, **options: Any) -> "FakeWandb":
        self.calls.append(options)
        if self._fails:
            raise self.Error("no API key")
        return self

    def Table(self, **content: Any) -> dict[str, Any]:  # noqa: N802 - the package's own name
        return content

    def define_metric(self, name: str, *, step_metric: str) -> None:
        self.calls.append((name, step_metric))

    def log(self, figures: dict[str, float]) -> None:
        self.calls.append(figures)

    def finish(self) -> None:
        self.calls.append("finish")


def test_a_run_is_named_after_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    found = tracking(wandb_project="reverse")
    found.record(3, {"reward/mean": 0.5})
    found.close()
    opened, *rest = fake.calls
    assert opened["project"] == "reverse"
    assert opened["name"] == "default/reverse"
    assert (opened["id"], opened["resume"]) == ("job-uid", "allow")
    assert rest == [("*", "step"), {"step": 3, "reward/mean": 0.5}, "finish"]
    assert json.dumps(opened), "plain values"


def test_a_run_that_cannot_be_opened_names_the_field(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", FakeWandb(fails=True))
    with pytest.raises(SpecError) as caught:
        tracking(wandb_project="reverse")
    assert str(caught.value) == "spec.tracking.wandbProject: cannot open a run: no API key"


@pytest.mark.parametrize(
    ("config", "module", "message"),
    [
        ({"folder": "/x"}, "torch.utils.tensorboard", "spec.tracking.folder: needs the package t"),
        ({"wandb_project": "x"}, "wandb", "spec.tracking.wandbProject: needs the package wandb"),
    ],
)
def test_a_missing_package_names_the_field(
    config: dict[str, Any], module: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(SpecError) as caught:
        tracking(**config)
    assert str(caught.value).startswith(message)


class OddTracker:
    """Instead of TensorBoard: fails at step 1, and waits at step 2 until `go`."""

    go = threading.Event()
    steps: ClassVar[list[int]] = []

    def __init__(self, folder: str, *, first_step: int) -> None:
        self.go.clear()
        self.steps.clear()

    def record(self, step: int, figures: Mapping[str, float]) -> None:
        if step == 1:
            raise OSError("the disk is full")
        if step == 2:
            assert self.go.wait(10)
        self.steps.append(step)

    def record_samples(self, step: int, records: Sequence[SampleRecord]) -> None:
        self.record(step, {})

    def close(self) -> None:
        self.steps.append(-1)


def test_a_tracker_that_fails_or_hangs_costs_figures_and_no_training(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tracking_module, "TensorBoardTracker", OddTracker)
    monkeypatch.setattr(tracking_module, "WAITING_STEPS", 2)
    found = tracking(folder="curves")
    found.record(1, {})
    found.record(2, {})
    deadline = time.monotonic() + 10
    while "step 1 were not written" not in caplog.text and time.monotonic() < deadline:
        time.sleep(0.001)
    time.sleep(0.05)  # until the thread waits in step 2
    for step in (3, 4, 5):
        found.record(step, {})
    assert "the figures of step 5 are dropped" in caplog.text
    OddTracker.go.set()
    found.close()
    assert OddTracker.steps == [2, 3, 4, -1]


def test_a_tracker_that_hangs_does_not_keep_the_trainer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tracking_module, "TensorBoardTracker", OddTracker)
    monkeypatch.setattr(tracking_module, "CLOSE_SECONDS", 0.01)
    found = tracking(folder="curves")
    found.record(2, {})
    found.close()
    assert "the last figures were not written" in caplog.text
    OddTracker.go.set()


def test_responses_go_to_a_file_of_their_own(tmp_path: Path) -> None:
    found = tracking(describe=Describer(sample_record()))
    found.record_samples(sampled(3))
    found.close()
    found.record_samples(sampled(4))
    assert read_records((tmp_path / SAMPLES).read_bytes()) == [sample_record()]


def test_responses_are_a_table_in_weights_and_biases(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    found = tracking(wandb_project="reverse", describe=Describer(*[sample_record()] * 20))
    found.record_samples(sampled(3))
    found.close()
    logged = fake.calls[2]
    assert logged["step"] == 3
    table = logged["samples"]
    assert len(table["data"]) == 16
    row = dict(zip(table["columns"], table["data"][0], strict=True))
    assert row == {
        "step": 3,
        "prompt": 17,
        "sample": 0,
        "reward": 0.25,
        "advantage": -1.5,
        "ended": "end token",
        "prompt text": "<s>What is 2 + 2?",
        "response": "It is 4</s>",
    }


def test_responses_are_text_in_tensorboard_and_no_markup(tmp_path: Path) -> None:
    event_accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator"
    )
    odd = sample_record(tokens=("# Title\n", "<b>", "x"))
    found = tracking(folder=str(tmp_path), describe=Describer(odd))
    found.record_samples(sampled(3))
    found.close()
    events = event_accumulator.EventAccumulator(str(tmp_path)).Reload()
    (event,) = events.Tensors("samples/text_summary")
    (text,) = event.tensor_proto.string_val
    lines = text.decode().splitlines()
    assert event.step == 3
    assert {"    # Title", "    <b>x", "    <s>What is 2 + 2?"} <= set(lines)
    assert "reward 0.25" in lines[0]


def test_responses_that_cannot_be_described_or_written_cost_themselves_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setattr(tracking_module, "TensorBoardTracker", OddTracker)
    found = tracking(folder="curves", describe=Describer(sample_record()))
    for step in (0, 1):  # the tracker fails at step 1
        found.record_samples(sampled(step))
    found.record(3, {"reward/mean": 0.5})
    found.close()
    assert "the responses of step 0 were not written" in caplog.text
    assert "the responses of step 1 were not written" in caplog.text
    assert OddTracker.steps == [3, -1]
    assert read_records((tmp_path / SAMPLES).read_bytes()) == [sample_record()]


def test_responses_are_dropped_while_a_tracker_hangs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tracking_module, "TensorBoardTracker", OddTracker)
    monkeypatch.setattr(tracking_module, "WAITING_SAMPLES", 2)
    found = tracking(folder="curves", describe=Describer(sample_record()))
    found.record(2, {})
    for step in (3, 4, 5, 6, 7):
        found.record_samples(sampled(step))
    assert "the responses of step 7 are dropped" in caplog.text
    OddTracker.go.set()
    found.close()
    assert OddTracker.steps[:2] == [2, 3]
