"""A failure of the local cluster is one paragraph: what failed, its last lines, what to do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hack.cluster import cache
from hack.cluster.errors import ClusterError, CommandError, explain

LOG = Path("/cache/log/build-etcd.log")


def test_it_says_what_failed_its_last_lines_the_log_and_what_to_do() -> None:
    output = "\n".join(f"line {number}" for number in range(20))
    error = CommandError("go build: exit status 1", output=output, log=LOG)
    error.step = "building etcd"
    lines = explain(error).splitlines()
    assert lines[0] == "error: building etcd: go build: exit status 1"
    assert lines[2:10] == [f"  | line {number}" for number in range(12, 20)]
    assert lines[10] == f"whole log: {LOG}"
    assert lines[11].startswith("what to do: run it again")


@pytest.mark.parametrize(
    ("output", "advice"),
    [
        ("write /root/x: no space left on device", "free some disk"),
        ('Get "https://packages.test": dial tcp: lookup x: no such host', "package registries"),
        ("Err:1 Temporary failure resolving 'packages.test'", "package registries"),
        ("mount: /proc: permission denied", "as root"),
        ("The connection to the server 127.0.0.1:1 was refused - did you", "your kubeconfig"),
        ("compile: signal: killed", "free some memory"),
    ],
)
def test_advice_follows_from_what_the_program_said(output: str, advice: str) -> None:
    assert advice in explain(CommandError("x: exit status 1", output=output, log=LOG))


def test_an_error_that_says_what_to_do_stands_alone() -> None:
    assert explain(ClusterError("no Docker engine: start Docker")) == (
        "error: no Docker engine: start Docker"
    )


def test_output_that_no_log_holds_is_kept_in_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLLCALL_CACHE", str(tmp_path))
    log = cache.keep_output(CommandError("apt-get: exit status 100", output="E: broken"))
    assert log is not None
    assert log.read_text() == "apt-get: exit status 100\nE: broken\n"
    assert cache.keep_output(CommandError("x", output="y", log=LOG)) is None


def test_a_command_that_fails_prints_no_traceback(tmp_path: Path) -> None:
    """The cache's folder is a file: an error of the system, as a full disk would be."""
    (tmp_path / "file").touch()
    done = subprocess.run(
        [sys.executable, "-m", "hack.cluster", "kubeconfig"],
        env={"ROLLCALL_CACHE": str(tmp_path / "file" / "cache")},
        cwd=Path(__file__).parents[4],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("error: ")
