"""The commands: each answers in JSON too, and says where it wrote what."""

import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from rollcall_cli import answers, job_actions, job_logs, live, samples_command
from rollcall_cli import main as command
from rollcall_cli.job_logs import LogLine
from rollcall_cli.job_record import NoSuchJobError
from rollcall_cli.job_summary import summarize
from tests.unit.rollcall_cli.example_record import record
from tests.unit.rollcall_protocol.sample_records import sample_record

CHANGES = ("suspend", "resume", "drain", "kill", "scale", "delete")
COMMANDS = ("status", "epochs", "pools", "watch", "logs", "describe", "report", "samples", *CHANGES)


@pytest.fixture(autouse=True)
def cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster with one job, whose answers are those that other tests know."""

    @asynccontextmanager
    async def opened(_: Any) -> AsyncIterator[tuple[None, str]]:
        yield None, "team"

    async def change(*_: Any, **asked: Any) -> dict[str, Any]:
        return {"message": "it drains"} | asked

    async def read_job(*_: Any, **__: Any) -> Any:
        return record(missing=["the figures could not be read"])

    async def read_summary(*_: Any, name: str, **__: Any) -> dict[str, Any]:
        if name != "reverse":
            raise NoSuchJobError("there is no such RLJob")
        return summarize(record(), [])

    async def read_logs(*_: Any, **__: Any) -> Any:
        return [
            LogLine("08:00:01", "a", "info", "joined", 1),
            LogLine("08:00:02", "a", "", "x"),
        ], []

    async def print_lines(*_: Any, **__: Any) -> None:
        print(json.dumps({"name": "reverse"}))

    monkeypatch.setattr(answers, "chosen_cluster", opened)

    async def read_description(*_: Any, **__: Any) -> dict[str, Any]:
        return {"name": "reverse"}

    for name in ("set_suspended", "drain", "kill", "scale", "delete"):
        monkeypatch.setattr(job_actions, name, change)
    monkeypatch.setattr(answers, "read_description", read_description)
    monkeypatch.setattr(answers, "read_job", read_job)
    monkeypatch.setattr(answers, "read_summary", read_summary)
    monkeypatch.setattr(job_logs, "read_logs", read_logs)
    monkeypatch.setattr(live, "print_lines", print_lines)

    async def get_job(*_: Any, **__: Any) -> None: ...

    async def read_samples(*_: Any, **__: Any) -> Any:
        return [sample_record()]

    monkeypatch.setattr(samples_command, "chosen_cluster", opened)
    monkeypatch.setattr(samples_command, "get_job", get_job)
    monkeypatch.setattr(samples_command, "read_samples", read_samples)


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_answers_in_json(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = [name, "reverse", *(["4"] if name == "scale" else [])]
    assert command.main([*words, "-o", "json"]) == 0
    text = capsys.readouterr().out
    lines = name in {"logs", "watch", "samples"}
    found = [json.loads(line) for line in text.splitlines()] if lines else [json.loads(text)]
    assert all(isinstance(answer, dict) and answer for answer in found)


def test_there_is_no_other_command() -> None:
    (commands,) = (a for a in command.parser()._actions if a.dest == "==SUPPRESS==" or a.choices)
    assert set(commands.choices or ()) == {*COMMANDS}


def test_a_report_is_written_where_it_is_asked_for_and_its_path_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "new" / "report.html"
    assert command.main(["report", "reverse", "--file", str(path)]) == 0
    out, err = capsys.readouterr()
    assert out == f"{path}\n"
    assert err == "rollcall: the figures could not be read\n"
    assert path.read_text().startswith("<!doctype html>")


def test_a_report_has_a_name_of_its_own_or_goes_to_standard_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert command.main(["report", "reverse"]) == 0
    assert (tmp_path / "reverse-report.html").exists()
    capsys.readouterr()
    assert command.main(["report", "reverse", "-f", "-"]) == 0
    assert capsys.readouterr().out.startswith("<!doctype html>")


def test_a_report_as_json_has_all_that_the_page_is_made_of(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert command.main(["report", "reverse", "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["job"]["metadata"]["name"] == "reverse"
    assert [step["step"] for step in found["steps"]] == list(range(1, 10))
    assert found["steps"][0]["figures"]["reward/mean"] == 0.1
    assert found["missing"] == ["the figures could not be read"]


def test_what_was_changed_is_said_in_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["drain", "reverse-cpu-a"]) == 0
    assert capsys.readouterr().out == "it drains\n"


def test_a_job_that_is_not_there_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["status", "revers"]) == 1
    assert capsys.readouterr().err == "rollcall: there is no such RLJob\n"


def test_a_command_of_another_package_gets_the_words_after_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    got: list[list[str]] = []

    def run(words: list[str]) -> int:
        got.append(words)
        return 7

    other = EntryPoint("other", "package:run", command.PLUGINS)
    monkeypatch.setattr(EntryPoint, "load", lambda _: run)
    monkeypatch.setattr(command, "entry_points", lambda group: [other] if group else [])
    assert command.main(["other", "run", "job.yaml"]) == 7
    assert got == [["run", "job.yaml"]]


@pytest.mark.parametrize(
    "words", [["-n", "other", "status", "reverse"], ["status", "reverse", "-n", "other"]]
)
def test_options_of_the_cluster_stand_before_the_command_or_behind_it(words: list[str]) -> None:
    options = command.parser().parse_args(words)
    assert (options.namespace, options.context, options.kubeconfig) == ("other", None, None)


def test_a_reader_that_has_enough_ends_a_command_in_silence() -> None:
    script = (
        "import sys; from rollcall_cli.answers import outcome\n"
        "async def many():\n"
        "    for number in range(100_000): print(number)\n"
        "    return 0\n"
        "sys.exit(outcome(many()))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as run:
        assert run.stdout is not None
        assert run.stderr is not None
        assert run.stdout.readline() == b"0\n"
        run.stdout.close()
        assert run.stderr.read() == b""
        assert run.wait(30) == 141


def test_what_containers_wrote_cannot_steer_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hostile = "\x1b[2J\x1b]52;c;eA==\x07\x9b31m\u202ex"

    async def read_logs(*_: Any, **__: Any) -> Any:
        return [LogLine("1", f"a{hostile}", "info", hostile, 1, f"{hostile}\n{hostile}")], [hostile]

    async def read_description(*_: Any, **__: Any) -> dict[str, Any]:
        row = {"type": hostile, "status": hostile, "reason": hostile, "message": hostile}
        return {"namespace": "n", "name": hostile, "phase": hostile, "conditions": [row]} | {
            "pods": [{"name": hostile, "says": hostile}],
            "events": [{"time": "2027-01-15T08:01:00Z", "message": hostile}],
        }

    async def suspended(*_: Any, **__: Any) -> dict[str, Any]:
        return {"message": hostile}

    async def read_summary(*_: Any, **__: Any) -> dict[str, Any]:
        raise NoSuchJobError(hostile)

    monkeypatch.setattr(job_logs, "read_logs", read_logs)
    monkeypatch.setattr(answers, "read_description", read_description)
    monkeypatch.setattr(answers, "read_summary", read_summary)
    monkeypatch.setattr(job_actions, "set_suspended", suspended)
    for name in ("logs", "describe", "suspend", "status"):
        command.main([name, "reverse"])
        written = "".join(capsys.readouterr()).replace("\n", "")
        assert "\\x1b" in written
        assert written.isprintable(), name
