"""Responses outlive restarts, stay within their bound, and a full disk costs lines alone."""

from pathlib import Path

import pytest

from rollcall_protocol.sample_record import read_records
from rollcall_runtime.train.samples import samples_file
from rollcall_runtime.train.samples.samples_file import SamplesFile
from tests.unit.rollcall_protocol.sample_records import sample_record


def steps(path: Path) -> list[tuple[int, float]]:
    """Step and reward of each response."""
    return [(record.step, record.reward) for record in read_records(path.read_bytes())]


def made(path: Path, *numbers: int, reward: float = 0.5) -> None:
    file = SamplesFile(path, first_step=numbers[0])
    for step in numbers:
        file.record_samples(step, [sample_record(step=step, reward=reward)])
    file.close()
    file.close()


def test_a_restart_drops_the_steps_that_it_makes_again(tmp_path: Path) -> None:
    path = tmp_path / "saved" / "samples.jsonl"
    made(path, 1, 2, 3)
    made(path, 2, reward=1.0)
    assert steps(path) == [(1, 0.5), (2, 1.0)]


def test_what_a_replaced_trainer_still_writes_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    former = SamplesFile(path, first_step=1)
    former.record_samples(1, [sample_record(step=1)])
    made(path, 2, reward=1.0)
    former.record_samples(2, [sample_record(step=2)])
    former.close()
    assert steps(path) == [(1, 0.25), (2, 1.0)]


def test_a_long_file_is_thinned_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    most = 10 * len(sample_record(step=50).line())
    monkeypatch.setattr(samples_file, "MOST_BYTES", most)
    path = tmp_path / "samples.jsonl"
    file = SamplesFile(path, first_step=1)
    for step in range(1, 51):
        file.record_samples(step, [sample_record(step=step)])
        assert path.stat().st_size <= most
    file.close()
    found = [step for step, _ in steps(path)]
    assert (found[0], found[-1]) == (1, 50)
    assert found == sorted(found)
    assert len(found) > 3


def test_a_line_that_was_cut_off_is_dropped_at_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    path.write_bytes(sample_record(step=1).line() + sample_record(step=2).line()[:-20])
    made(path, 3)
    assert steps(path) == [(1, 0.25), (3, 0.5)]


def test_a_disk_that_takes_nothing_costs_lines_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "file" / "samples.jsonl"
    path.parent.write_text("in the place of a folder")
    file = SamplesFile(path, first_step=1)
    file.record_samples(1, [sample_record(step=1)])
    assert f"responses are not written to {path}" in caplog.text
    path.parent.unlink()
    file.record_samples(2, [sample_record(step=2)])
    file.close()
    assert steps(path) == [(2, 0.25)], "it tries again"


def test_a_disk_that_is_full_costs_lines_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "samples.jsonl"
    file = SamplesFile(path, first_step=1)
    file.record_samples(1, [sample_record(step=1)])
    file.close()
    file._file = Path("/dev/full").open("wb")  # noqa: SIM115 - the file closes it
    file.record_samples(2, [sample_record(step=2)])
    assert "No space left" in caplog.text
    file.record_samples(3, [sample_record(step=3)])
    file.close()
    assert steps(path) == [(1, 0.25), (3, 0.25)]


def test_a_step_is_kept_up_to_its_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples_file, "MOST_STEP_BYTES", 5 * len(sample_record().line()))
    file = SamplesFile(tmp_path / "samples.jsonl", first_step=1)
    file.record_samples(3, [sample_record()] * 20)
    file.close()
    assert len(steps(tmp_path / "samples.jsonl")) == 5


def test_a_line_that_is_too_long_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(samples_file, "MOST_LINE", len(sample_record().line()))
    file = SamplesFile(tmp_path / "samples.jsonl", first_step=1)
    file.record_samples(3, [sample_record(prompt_text="x" * 1000), sample_record(reward=1.0)])
    file.close()
    assert steps(tmp_path / "samples.jsonl") == [(3, 1.0)]
