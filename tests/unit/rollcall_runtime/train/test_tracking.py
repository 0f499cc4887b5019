"""Figures go to TensorBoard and Weights & Biases, if the job asks."""

import json
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from rollcall_protocol.job_config import TrackingConfig
from rollcall_protocol.step_history import read_rows
from rollcall_runtime.train import tracking as tracking_module
from rollcall_runtime.train.tracking import Tracking
from rollcall_runtime.worker.errors import SpecError
from tests.unit.rollcall_runtime.jobs import job_config

HISTORY = "history.jsonl"


@pytest.fixture(autouse=True)
def _folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def tracking(*, first_step: int = 0, **config: str) -> Tracking:
    job = job_config(tracking=TrackingConfig(**config))
    return Tracking(job, history=Path(HISTORY), first_step=first_step)


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
