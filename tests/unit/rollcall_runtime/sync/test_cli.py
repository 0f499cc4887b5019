"""`rollcall-sync`: what it prints, and where."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rollcall_protocol.pod_contract import ExitCode
from rollcall_runtime.sync import cli
from rollcall_runtime.worker.command_output import own_output

HELP = "from rollcall_runtime.cli import sync; sync(['engines', '--help'])"


def test_engines_are_listed_with_their_properties(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["engines", "--json"]) == ExitCode.OK
    found = {engine["name"]: engine for engine in json.loads(capfd.readouterr().out)}
    assert list(found["gloo"]) == ["name", "kind", "devices", "available", "version", "reason"]
    assert (found["gloo"]["kind"], found["gloo"]["devices"]) == ("group", ["cpu"])
    assert (found["gloo"]["available"], found["gloo"]["reason"]) == (True, None)


def test_engines_are_listed_as_text_too(capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["engines"]) == ExitCode.OK
    head, *rows = capfd.readouterr().out.splitlines()
    assert head.split() == ["NAME", "KIND", "DEVICES", "AVAILABLE", "VERSION", "REASON"]
    assert any(row.split()[:4] == ["gloo", "group", "cpu", "yes"] for row in rows)


def test_what_libraries_print_does_not_mix_with_the_result(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with own_output() as output:
        print("python")
        os.write(1, b"from C\n")
        output.write("result\n")
    printed = capfd.readouterr()
    assert printed.out == "result\n"
    assert "python\n" in printed.err
    assert "from C\n" in printed.err


def test_help_needs_no_torch() -> None:
    output = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", HELP],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(Path("workloads").resolve())},
    )
    assert "torch" not in output.stderr
