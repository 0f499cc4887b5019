"""The page of commands is as the programs' own parsers say."""

import sys
from pathlib import Path

import pytest

from hack.docs import cli_reference


def run(monkeypatch: pytest.MonkeyPatch, how: str) -> int:
    monkeypatch.setattr(sys, "argv", ["cli_reference", how])
    return cli_reference.main()


def test_it_has_every_command_and_option_once() -> None:
    text = cli_reference.page()
    for heading in ("## rollcall", "### rollcall status", "### rollcall-operator plan"):
        assert text.count(f"\n{heading}\n") == 1
    assert "| `-f FILE`, `--file FILE` | where to write, - for standard output" in text
    assert "| `--every SECONDS` | between two readings (2) |" in text
    assert "%(" not in text


def test_a_page_that_was_forgotten_is_found_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "--check") == 0
    monkeypatch.setattr(cli_reference, "PAGE", tmp_path / "cli.md")
    (tmp_path / "cli.md").write_text(cli_reference.page().replace("--every", "--each"))
    assert run(monkeypatch, "--check") == 1
    assert "cli.md is out of date" in capsys.readouterr().err
    assert run(monkeypatch, "--write") == 0
    assert run(monkeypatch, "--check") == 0
