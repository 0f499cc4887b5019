"""A part is due when it never ran, failed, or has changed since its last run."""

from pathlib import Path

import pytest

from hack.test_parts import changes, record
from hack.test_parts.parts import PARTS

RAN = record.Outcome(
    commit="a" * 40,
    date="2026-01-31",
    minutes=1.5,
    processor_minutes=2.5,
    passed=3,
    failed=0,
    skipped={"no accelerator": 2},
)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(record, "FILE", tmp_path / "full-run.json")
    return record.FILE


def test_outcomes_are_kept_in_the_order_of_the_parts(file: Path) -> None:
    first, second = PARTS[0].name, PARTS[1].name
    record.save(second, RAN)
    record.save(first, RAN)
    assert list(record.load().items()) == [(first, RAN), (second, RAN)]
    assert file.read_text().index(f'"{first}"') < file.read_text().index(f'"{second}"')


def test_a_part_that_is_no_more_is_forgotten(file: Path) -> None:
    file.write_text('{"former": {"commit": "a"}}')
    assert record.load() == {}


def test_what_is_due_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "paths_since", lambda _: {"charts/x"})
    monkeypatch.setattr(changes, "parts_of", lambda paths: {"cluster"} if paths else set())
    outcomes = {part.name: RAN for part in PARTS if part.name != "sbom"}
    failed = record.Outcome(
        commit="a" * 40, date="2026-01-30", minutes=1, processor_minutes=1, passed=1, failed=1
    )
    assert record.due(outcomes | {"jobs": failed}) == {
        "cluster": "changed since aaaaaaaa",
        "jobs": "failed on 2026-01-30",
        "sbom": "never ran",
    }


def test_a_run_of_a_commit_that_is_not_here_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "paths_since", lambda _: None)
    assert record.due({part.name: RAN for part in PARTS})["unit"] == (
        "ran on aaaaaaaa, which this clone does not have"
    )
