"""The history of steps outlives restarts, stays small, and a full disk costs its lines alone."""

from pathlib import Path

import pytest

from rollcall_protocol.step_history import read_rows
from rollcall_runtime.worker import history_file
from rollcall_runtime.worker.history_file import HistoryFile


def steps(path: Path) -> dict[int, float]:
    """The reward of each step."""
    return {row.step: row.figures["reward/mean"] for row in read_rows(path.read_text())}


def made(path: Path, *numbers: int, reward: float = 0.5) -> None:
    file = HistoryFile(path, first_step=numbers[0])
    for step in numbers:
        file.record(step, {"reward/mean": reward})
    file.close()
    file.close()


def test_a_restart_drops_the_steps_that_it_makes_again(tmp_path: Path) -> None:
    path = tmp_path / "saved" / "history.jsonl"
    made(path, 1, 2, 3)
    made(path, 2, reward=1.0)
    assert steps(path) == {1: 0.5, 2: 1.0}


def test_what_a_replaced_trainer_still_writes_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    former = HistoryFile(path, first_step=1)
    former.record(1, {"reward/mean": 0.5})
    made(path, 2, reward=1.0)
    former.record(2, {"reward/mean": 0.0})
    former.close()
    assert steps(path) == {1: 0.5, 2: 1.0}


def test_a_long_history_is_thinned_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_file, "MOST_STEPS", 8)
    path = tmp_path / "history.jsonl"
    made(path, *range(1, 51))
    found = steps(path)
    assert len(found) <= 8
    assert min(found) == 1
    assert max(found) == 50
    assert len(path.read_text().splitlines()) <= 16


def test_a_disk_that_takes_nothing_costs_lines_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "file" / "history.jsonl"
    path.parent.write_text("in the place of a folder")
    file = HistoryFile(path, first_step=1)
    file.record(1, {"reward/mean": 0.5})
    assert f"the history of steps is not written to {path}" in caplog.text
    path.parent.unlink()
    file.record(2, {"reward/mean": 1.0})
    file.close()
    assert steps(path) == {1: 0.5, 2: 1.0}, "it tries again"


def test_a_disk_that_is_full_costs_lines_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "history.jsonl"
    file = HistoryFile(path, first_step=1)
    file.close()
    full = Path("/dev/full").open("w")  # noqa: SIM115 - the history closes it
    file._file = full
    file.record(1, {"reward/mean": 0.5})
    assert "No space left" in caplog.text
    file.record(2, {"reward/mean": 1.0})
    file.close()
    assert steps(path) == {1: 0.5, 2: 1.0}
