"""The page of measurements is made of the stored runs, and shows a missed goal as missed."""

import json
import sys
from pathlib import Path

import pytest

from hack.docs import measurements
from hack.docs.stored_runs import Bench, Figure, Run, read, write

FIGURES = (
    Figure(name="fast", value="a", unit="s", at_most=0.3),
    Figure(name="slow", value="b", unit="s", ratio="c", to="bare", at_most=2, goal_of="ratio"),
    Figure(name="never measured", value="d"),
)
RUN = Run(
    commit="01234567",
    date="2026-11-27T09:22:01+00:00",
    load="1 to 2",
    machine="two cores",
    values={"a": 0.25, "b": (1234.5, 1000, 2000), "c": 2.5},
)
RECORD = {
    "commit": "89abcdef01",
    "uncommitted_changes": False,
    "began": "2026-11-28T09:22:01+00:00",
    "machine": {"processor": "EPYC", "cores": 2, "memory_gib": 24},
    "load_average": 0.5,
}


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the file of one bench."""
    folder = tmp_path / "runs"
    folder.mkdir()
    monkeypatch.setattr(measurements, "RUNS", folder)
    monkeypatch.setattr(measurements, "PAGE", tmp_path / "measurements.md")
    monkeypatch.setattr(measurements, "GROUPS", {"Speed": ("b",)})
    bench = Bench(title="B", measures="It.", command="make b", figures=FIGURES, runs=(RUN,))
    write(folder / "b.json", bench)
    return folder


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["measurements", *arguments])
    return measurements.main()


def rows(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("| ")][1:]


def test_the_page_of_this_repository_is_as_its_runs_say(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch, "--check") == 0


@pytest.mark.usefixtures("runs")
def test_a_row_has_goal_value_ratio_commit_date_and_load_and_a_missed_goal_is_marked() -> None:
    first, second, third = rows(measurements.page())
    assert first == "| fast | at most 0.3 s | 0.25 s |  | 01234567 | 2026-11-27 | 1 to 2 |"
    assert second.startswith("| slow | ratio at most 2: **missed** | 1,234 (1,000 to 2,000) s |")
    assert second.endswith("| 2.5 to bare | 01234567 | 2026-11-27 | 1 to 2 |")
    assert third == "| never measured |  | no run stored |  |  |  |  |"
    assert "Goals that are missed: 1 of 2." in measurements.page()


def test_what_was_not_recorded_says_so(runs: Path) -> None:
    unknown = RUN.model_copy(update={"commit": None, "date": None, "load": None})
    write(runs / "b.json", read(runs / "b.json").model_copy(update={"runs": (unknown,)}))
    assert rows(measurements.page())[0].endswith("| not recorded | not recorded | not recorded |")


def test_a_file_of_no_group_and_a_group_without_a_file_are_named(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (runs / "b.json").rename(runs / "c.json")
    assert run(monkeypatch, "--check") == 1
    assert "differ in: b, c" in capsys.readouterr().err


@pytest.mark.usefixtures("runs")
def test_a_page_that_was_forgotten_is_found_and_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measurements.PAGE.write_text(measurements.page().replace("0.25", "0.2"))
    assert run(monkeypatch, "--check") == 1
    assert "measurements.md is out of date" in capsys.readouterr().err
    assert run(monkeypatch, "--write") == 0
    assert run(monkeypatch, "--check") == 0


@pytest.mark.usefixtures("runs")
def test_a_run_that_is_stored_is_on_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = tmp_path / "b-20261128-092201-89abcdef.jsonl"
    results.write_text(json.dumps({"run": RECORD, "a": 0.31}))
    assert run(monkeypatch, "--store", str(results)) == 0
    first, second, _ = rows(measurements.PAGE.read_text())
    assert first == (
        "| fast | at most 0.3 s: **missed** | 0.31 s |  | 89abcdef | 2026-11-28 | 0.5 |"
    )
    assert "| 01234567 |" in second  # the newer run did not measure it


@pytest.mark.usefixtures("runs")
@pytest.mark.parametrize(
    ("name", "says"),
    [("other.json", "--bench: there is no bench other; there are b"), ("b.json", 'has a "run"')],
)
def test_a_file_that_cannot_be_stored_is_refused_and_nothing_is_written(
    name: str,
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / name).write_text("{}")
    assert run(monkeypatch, "--store", str(tmp_path / name)) == 1
    assert says in capsys.readouterr().err
    assert not measurements.PAGE.exists()
