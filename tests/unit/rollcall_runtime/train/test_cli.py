"""`rollcall-train`: what it prints, and how it ends."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rollcall_protocol.pod_contract import ExitCode
from rollcall_runtime.train import cli
from tests.unit.rollcall_runtime.train.supervised_data import MODEL, reverse_answers


@pytest.fixture
def rows(tmp_path: Path) -> str:
    path = tmp_path / "rows.jsonl"
    reverse_answers(path, rows=16)
    return str(path)


def printed(capfd: pytest.CaptureFixture[str]) -> list[Any]:
    return [json.loads(line) for line in capfd.readouterr().out.splitlines()]


def test_engines_are_listed_with_what_they_know(capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["engines", "--json"]) == ExitCode.OK
    (listed,) = printed(capfd)
    fsdp2 = next(engine for engine in listed if engine["name"] == "fsdp2")
    assert fsdp2["available"]
    assert fsdp2["reason"] is None
    assert "cpu" in fsdp2["devices"]
    assert "packing" in fsdp2["settings"]
    assert cli.main(["engines"]) == ExitCode.OK
    assert "fsdp2 " in capfd.readouterr().out


def test_data_shows_the_first_rows(rows: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["data", "--model", MODEL, "--head", "2", "--json", rows]) == ExitCode.OK
    found = printed(capfd)
    assert [row["length"] for row in found] == [7, 7]
    assert all(len(row["row"]["completion"]) == 6 for row in found)
    assert cli.main(["data", "--model", MODEL, "--supervised", rows]) == ExitCode.OK
    assert "used, 13 tokens" in capfd.readouterr().out


def test_training_and_export_of_a_checkpoint(
    rows: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    command = ["sft", "--model", MODEL, "--rows-per-step", "8", "--steps", "2", "--json", rows]
    saved = ["--checkpoints", str(tmp_path / "saved"), "--export", str(tmp_path / "out")]
    assert cli.main([*command, *saved]) == ExitCode.OK
    captured = capfd.readouterr()
    assert [json.loads(line)["step"] for line in captured.out.splitlines()] == [1, 2]
    assert "finished; of 16 rows 0 were left out and 0 truncated" in captured.err
    again = str(tmp_path / "again")
    assert cli.main(["export", str(tmp_path / "saved"), again, "--model", MODEL]) == ExitCode.OK
    weights = [Path(folder, "model.safetensors") for folder in (again, tmp_path / "out")]
    assert weights[0].read_bytes() == weights[1].read_bytes()


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        (["data", "--model", "builtin:none", "x.jsonl"], ExitCode.BAD_CONFIG, "spec.model.path: "),
        (["data", "--model", MODEL, "/no/p.jsonl"], ExitCode.BAD_CONFIG, "cannot read '/no/p.jso"),
        (["export", "/no", "/out", "--model", MODEL], ExitCode.FAILED, "/no: state.json cannot be"),
        (
            ["sft", "--model", MODEL, "--learning-rate", "-1", "/no/p.jsonl"],
            ExitCode.FAILED,
            "learningRate must be above 0 and at most 1, not -1",
        ),
    ],
)
def test_what_is_wrong_is_said_on_standard_error(
    command: list[str], code: ExitCode, message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(command) == code
    captured = capfd.readouterr()
    assert captured.out == ""
    assert f"rollcall-train: {message}" in captured.err or message in captured.err


def test_help_needs_no_torch() -> None:
    result = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "rollcall_runtime.train", "--help"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert "sft" in result.stdout
    assert " torch\n" not in result.stderr


@pytest.mark.slow
def test_two_ranks_train_as_one_does(rows: str, capfd: pytest.CaptureFixture[str]) -> None:
    command = ["sft", "--model", MODEL, "--rows-per-step", "8", "--steps", "3", "--json"]
    losses = []
    for ranks in ("1", "2"):
        assert cli.main([*command, "--ranks", ranks, rows]) == ExitCode.OK
        losses.append([step["loss"] for step in printed(capfd)])
    assert losses[1] == pytest.approx(losses[0], abs=1e-5)
