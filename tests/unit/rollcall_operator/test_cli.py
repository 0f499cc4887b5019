"""The command line: exit codes and what it says."""

from pathlib import Path

import pytest

from rollcall_operator.cli import main
from rollcall_protocol import __version__

ROOT = Path(__file__).parents[3]


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version"]) == 0
    assert capsys.readouterr().out.strip() == __version__


def test_crds_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["crds"]) == 0
    assert capsys.readouterr().out.count("kind: CustomResourceDefinition") == 2


def test_crds_that_drifted_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["crds", "--check", "--dir", str(ROOT / "crds")]) == 0
    assert main(["crds", "--write", "--dir", str(tmp_path)]) == 0
    assert main(["crds", "--check", "--dir", str(tmp_path)]) == 0
    changed = next(tmp_path.iterdir())
    changed.write_text(changed.read_text().replace("minimum: 0", "minimum: -1"))
    assert main(["crds", "--check", "--dir", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert "minimum: -1" in said
    assert "run `rollcall-operator crds --write`" in said


def test_a_plan_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "-f", str(ROOT / "examples" / "reverse.yaml")]) == 0
    assert "kind: StatefulSet" in capsys.readouterr().out


def test_a_wrong_manifest_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "examples" / "reverse.yaml").read_text()
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(text.replace("name: tiny", "name: tinny"))
    assert main(["plan", "-f", str(wrong)]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("RLJob reverse: spec.rollouts[0].engine.name: unknown inference engine")


def test_a_missing_file_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "-f", "/no/such/file"]) == 1
    assert "/no/such/file" in capsys.readouterr().err


def test_run_says_which_flag_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--workers", "many"]) == 2
    assert "--workers" in capsys.readouterr().err
