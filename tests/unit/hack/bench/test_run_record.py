"""Results name the run that they came from."""

import json
from pathlib import Path

import pytest

from hack.bench import run_record as record


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(record, "RESULTS", tmp_path / "results")
    return tmp_path / "results"


def test_a_run_has_commit_machine_date_load_and_settings() -> None:
    run = record.run_record({"rounds": 5})
    assert len(run["commit"]) == 40
    assert run["began"].endswith("+00:00")
    assert run["machine"]["cores"] >= 1
    assert run["machine"]["memory_gib"] > 0
    assert run["load_average"] >= 0
    assert run["settings"] == {"rounds": 5}
    assert run["commit"][:8] in record.caption(run)


def test_figures_go_to_a_file_of_their_own_and_to_the_last_line(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = record.run_record()
    record.finish("sync", run, {"seconds": 1.5})
    (path,) = results.iterdir()
    assert path.name.startswith("sync-")
    kept = json.loads(path.read_text())
    assert json.loads(capsys.readouterr().out) == kept
    assert kept.pop("seconds") == 1.5
    assert kept["run"].pop("ended") >= run["began"]
    assert kept["run"].pop("load_average_at_end") >= 0
    assert kept["run"] == run


def test_a_tree_without_git_is_not_called_clean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "ROOT", tmp_path)
    run = record.run_record()
    assert run["commit"] == "unknown"
    assert run["uncommitted_changes"] is True
