"""The cluster comes up, and is removed, in a root that has only what a new user's machine has.

The root is that of `make fresh`: a minimal Debian with git, make and python3. So a program, library
or file that the cluster takes from the machine, and not from the project, makes this fail. What is
in the machine's caches is handed in, read-only, to save the time of building it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from hack.cluster import machine
from hack.fresh import namespace

REPOSITORY_ROOT = Path(__file__).parents[3]
COMMAND = [sys.executable, "-m", "hack.fresh", "--caches"]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(os.geteuid() != 0, reason="making a root and entering it takes root"),
]


def traces() -> Counter[str]:
    """What a run could leave behind on the machine."""
    groups = (path for pattern in ("*", "*/*") for path in machine.SYS_CGROUP.glob(pattern))
    return Counter(
        [
            *(f"folder {path}" for path in namespace.PARENT.glob(f"{namespace.PREFIX}*")),
            *(f"link {path.name}" for path in Path("/sys/class/net").iterdir()),
            *(f"control group {path}" for path in groups if path.is_dir()),
            *(f"mount {line.split()[1]}" for line in Path("/proc/mounts").read_text().splitlines()),
            *(f"setting {name} {value}" for name, value in machine.read_sysctls().items()),
        ]
    )


def left_behind(before: Counter[str]) -> Counter[str]:
    """What is there now and was not before.

    What is gone is no trace: the machine's own cluster ends mounts and links of its builds late.
    """
    return traces() - before


def test_the_cluster_comes_up_and_down_without_anything_of_this_machine() -> None:
    before = traces()
    done = subprocess.run(
        [*COMMAND, "cluster"],
        cwd=REPOSITORY_ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        timeout=1100,
    )
    assert done.returncode == 0, done.stdout
    lines = done.stdout.splitlines()
    assert [line.split()[1] for line in lines if line.endswith("passed")] == [
        "cluster",
        "cluster-down",
    ]
    assert not left_behind(before)


def test_a_run_that_is_killed_removes_what_it_made(tmp_path: Path) -> None:
    """Also when a network link and control groups of a cluster are there already."""
    before = traces()
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [*COMMAND, "cluster"], cwd=REPOSITORY_ROOT, stdout=log, stderr=log
        )
        deadline = time.monotonic() + 600
        while not any(name.startswith("link ") for name in left_behind(before)):
            assert time.monotonic() < deadline, (tmp_path / "log").read_text()
            assert process.poll() is None, (tmp_path / "log").read_text()
            time.sleep(0.2)
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=10)
    deadline = time.monotonic() + 120
    while left := left_behind(before):
        assert time.monotonic() < deadline, left
        time.sleep(0.5)


def test_a_failing_command_is_reported_and_fails_the_run() -> None:
    done = subprocess.run(
        [*COMMAND, "no-such-target"],
        cwd=REPOSITORY_ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 1
    assert "FAILED with exit status 2" in done.stdout
