"""The gate ends with its first failure; a full run goes on, and keeps what became of each part."""

import json
from pathlib import Path

import pytest

from hack.test_parts import __main__ as command
from hack.test_parts import changes, pages, parts, record

GOOD, BAD = "python -c 'print(\"{} ran\")'", "python -c 'print(\"{} ran\"); raise SystemExit(3)'"


def part(name: str, text: str = GOOD, *, gate: bool = True) -> parts.Part:
    return parts.Part(name=name, proves="nothing", commands=(text.format(name),), gate=gate)


@pytest.fixture(autouse=True)
def made_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Four parts: three of the gate, of which the second fails, and one that is only in full."""
    table = (part("first"), part("second", BAD), part("third"), part("other", gate=False))
    for module in (parts, command, record, pages):
        monkeypatch.setattr(module, "PARTS", table)
    monkeypatch.setattr(command, "NAMES", tuple(part.name for part in table))
    monkeypatch.setattr(record, "FILE", tmp_path / "full-run.json")
    for page in ("TESTING", "CONTRIBUTING"):
        copy = tmp_path / page
        copy.write_text(getattr(pages, page).read_text())
        monkeypatch.setattr(pages, page, copy)


def run(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], *arguments: str
) -> tuple[int, list[str], str]:
    """The exit status, the parts that ran, and the last line."""
    monkeypatch.setattr("sys.argv", ["test_parts", *arguments])
    status = command.main()
    lines = capfd.readouterr().out.splitlines()
    ran = [line.removesuffix(" ran") for line in lines if line.endswith(" ran")]
    return status, ran, lines[-1]


def test_the_gate_ends_with_its_first_failure(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    status, ran, last = run(monkeypatch, capfd)
    assert (status, ran, last) == (1, ["first", "second"], "=== failed: second")
    assert record.load() == {}


def test_parts_can_be_named_those_outside_the_gate_too(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    status, ran, last = run(monkeypatch, capfd, "other", "first")
    assert (status, ran) == (0, ["first", "other"])
    assert last.startswith("=== minutes, and of the processor, the whole machine's: first 0")


def test_a_full_run_goes_on_after_a_failure_and_keeps_all_outcomes(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    status, ran, last = run(monkeypatch, capfd, "--full")
    assert (status, ran, last) == (1, ["first", "second", "third", "other"], "=== failed: second")
    kept = record.load()
    assert {name: (one.passed, one.failed) for name, one in kept.items()} == {
        "first": (1, 0),
        "second": (0, 1),
        "third": (1, 0),
        "other": (1, 0),
    }
    assert "| `second` | yes | nothing | 0" in pages.TESTING.read_text()


def test_a_full_run_that_continues_leaves_out_what_passed_and_has_not_changed(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    run(monkeypatch, capfd, "--full")
    monkeypatch.setattr(changes, "paths_since", lambda _: {"docs"})
    monkeypatch.setattr(changes, "parts_of", lambda _: {"third"})
    assert run(monkeypatch, capfd, "--full", "--continue")[1] == ["second", "third"]


def test_the_parts_that_a_change_needs_are_found(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    asked = list[str]()

    def paths_since(commit: str) -> set[str]:
        asked.append(commit)
        return {"a"}

    monkeypatch.setattr(changes, "paths_since", paths_since)
    monkeypatch.setattr(changes, "parts_of", lambda _: {"other", "third"})
    assert run(monkeypatch, capfd, "changed", "--since", "v1")[1] == ["third", "other"]
    assert asked == ["v1"]


def test_a_commit_that_is_not_there_is_named(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(changes, "paths_since", lambda _: None)
    with pytest.raises(SystemExit, match="SINCE=v1: no such commit"):
        run(monkeypatch, capfd, "changed", "--since", "v1")


def test_all_names_are_printed_for_programs(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    _, _, last = run(monkeypatch, capfd, "--list-full")
    assert json.loads(last) == ["first", "second", "third", "other"]
