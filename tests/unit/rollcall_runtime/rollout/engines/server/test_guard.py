"""A server's processes and shared memory go with the agent, whatever ends the agent."""

import mmap
import os
import subprocess
import sys
import time
from pathlib import Path

from rollcall_runtime.rollout.engines.server import guard

SECONDS = 10
# A process with a child and shared memory, which says when both are there.
SCRIPT = """
import mmap, subprocess, sys, time
subprocess.Popen(["sleep", "60"])
with open(sys.argv[1], "r+b") as file:
    memory = mmap.mmap(file.fileno(), 4096)
print("ready", flush=True)
time.sleep(60)
"""


def start(shared: Path) -> subprocess.Popen[bytes]:
    shared.write_bytes(b"\0" * 4096)
    command = [sys.executable, "-c", SCRIPT, str(shared)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    process.stdout.close()
    return process


def test_a_group_is_killed_and_its_files_and_shared_memory_are_removed(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    (folder / "reports").mkdir(parents=True)
    shared = Path(f"/dev/shm/rollcall-test-{os.getpid()}")
    other = shared.with_suffix(".other")
    other.write_bytes(b"\0" * 4096)
    with other.open("r+b") as file, mmap.mmap(file.fileno(), 4096):
        process = start(shared)
        guarding = subprocess.Popen(
            [sys.executable, "-S", "-E", guard.__file__, str(process.pid), str(folder)],
            stdin=subprocess.PIPE,
        )
        assert guarding.stdin is not None
        time.sleep(0.3)
        assert process.poll() is None, "it waits for its standard input to end"
        guarding.stdin.close()
        assert process.wait(SECONDS) < 0
        assert guarding.wait(SECONDS) == 0
        assert not shared.exists()
        assert not folder.exists()
        assert other.exists(), "another process's"
    other.unlink()


def test_a_group_that_is_gone_costs_nothing() -> None:
    process = subprocess.Popen(["true"], start_new_session=True)
    process.wait(SECONDS)
    guard.kill(process.pid)
