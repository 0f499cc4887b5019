"""`make bench-recovery` measures: trials of earlier runs are taken only when that is asked for."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hack.bench import run_record as record
from hack.bench.recovery import __main__ as command
from hack.bench.recovery.trial_file import TrialFile
from hack.bench.recovery.trial_statistics import TrialResult

Bench = Callable[..., int]


class NoJob:
    """Stands for the job on the cluster."""

    def __init__(self, *_: object) -> None: ...

    def __enter__(self) -> "NoJob":
        return self

    def __exit__(self, *_: object) -> None: ...


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Runs the command with one event, whose trials take 1, 2, ... seconds."""
    monkeypatch.setattr(record, "RESULTS", tmp_path / "results")
    monkeypatch.setattr("hack.cluster.installation.connect", lambda: None)
    monkeypatch.setattr(command, "BenchJob", NoJob)
    monkeypatch.setattr(
        command,
        "EVENTS",
        {
            "stop": (
                None,
                lambda _, number: [
                    TrialResult("stop_beyond_bound", number + 1.0),
                    TrialResult("stop", number + 1.0),
                ],
            )
        },
    )

    def run(*arguments: str) -> int:
        words = ["bench", "--no-setup", "--trials", "2", *arguments]
        monkeypatch.setattr(sys, "argv", words)
        return command.main()

    return run


def files(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "results").glob("recovery-*.jsonl"))


def test_a_run_measures_into_a_new_file_that_names_it(
    bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench() == 0
    (path,) = files(tmp_path)
    assert TrialFile(path).completed("stop") == 2
    assert path.with_suffix(".svg").exists()
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert last["file"] == str(path)
    assert [run["commit"] for run in last["runs"]] == [record.run_record()["commit"]]


def test_what_the_docs_show_is_neither_read_nor_written(bench: Bench) -> None:
    shown = record.ROOT / "docs" / "measurements"
    before = {path: path.stat().st_mtime_ns for path in shown.glob("recovery.*")}
    assert bench() == 0
    assert {path: path.stat().st_mtime_ns for path in shown.glob("recovery.*")} == before


def test_an_earlier_run_is_continued_when_asked_and_both_runs_are_named(
    bench: Bench, tmp_path: Path
) -> None:
    earlier = tmp_path / "earlier.jsonl"
    TrialFile(earlier).begin(record.run_record("earlier"))
    TrialFile(earlier).add([TrialResult("stop", 9.0)], load=0.5)
    assert bench("--continue", str(earlier)) == 0
    assert [one.seconds for one in TrialFile(earlier).results() if one.event == "stop"] == [9, 2]
    assert [run["settings"] for run in TrialFile(earlier).runs()] == [
        "earlier",
        {"trials": 2, "only": None},
    ]
    assert not files(tmp_path)


def test_a_summary_of_a_file_measures_nothing(
    bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "one.jsonl"
    TrialFile(path).begin(record.run_record())
    TrialFile(path).add([TrialResult("stop", 3.0)], load=0.5)
    before = path.read_text()
    assert bench("--summary", str(path)) == 0
    assert path.read_text() == before
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["events"]["stop"]["n"] == 1
