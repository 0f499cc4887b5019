"""Marks of processes: which container each belongs to, also when it was forked alone."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from rollcall_local.kubelet.marks import (
    MARK,
    ROOM,
    ROOM_BYTES,
    containers,
    end_all,
    mark_this_process,
    marked,
)
from rollcall_local.kubelet.memory import resident, used_by_container

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux alone shows environments")

# A container that was forked; it forks once more, and that one has a session of its own.
FORKS = """
import os, sys, time
from rollcall_local.kubelet.marks import mark_this_process
first = os.fork()
if first == 0:
    mark_this_process(sys.argv[1])
    os.environ.clear()
    second = os.fork()
    if second == 0:
        os.setsid()
        time.sleep(300)
    print(os.getpid(), second, flush=True)
    time.sleep(300)
os.waitpid(first, 0)
"""


@contextlib.contextmanager
def program(*argv: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """A program that runs, with more variables."""
    env = {**os.environ, **environment}
    with subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def test_a_process_with_a_mark_and_its_children_are_found() -> None:
    script = "sleep 300 & echo $!; wait"
    with program("sh", "-c", script, **{MARK: "uid-a/worker"}) as process:
        child = int(line(process))
        assert sorted(marked("uid-a/worker")) == sorted([process.pid, child])
        assert containers()[child] == "uid-a/worker"
        assert {process.pid, child} <= set(marked())
        assert marked("uid-a/work") == marked("uid-a/worker2") == []
        assert end_all({process.pid: "uid-a/worker"}, seconds=10) == []
        assert marked("uid-a/worker") == []


def test_a_fork_is_found_by_the_mark_that_it_gives_itself_and_so_are_its_own() -> None:
    container = "uid-b/" + "w" * 63
    command = (sys.executable, "-c", FORKS, container)
    with program(*command, **{ROOM: " " * ROOM_BYTES}) as process:
        first, second = map(int, line(process).split())
        assert sorted(marked(container)) == sorted([first, second])
        assert process.pid not in containers()
        assert end_all({first: container}, seconds=10) == []
        assert process.wait(10) == 0


def test_a_process_without_room_cannot_be_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=f"the environment has no {ROOM}"):
        mark_this_process("uid/worker")
    monkeypatch.setenv(ROOM, " " * ROOM_BYTES)
    with pytest.raises(ValueError, match="the name of the container is too long"):
        mark_this_process("w" * 1000)


def test_memory_is_that_of_all_processes_of_a_container() -> None:
    script = "import time; x = b'1' * (64 << 20); print('ready', flush=True); time.sleep(300)"
    mark = {MARK: "uid-c/worker"}
    with (
        program(sys.executable, "-c", script, **mark) as first,
        program("sleep", "300", **mark) as second,
    ):
        assert line(first) == "ready\n"
        used = used_by_container()["uid-c/worker"]
        assert used == resident(first.pid) + resident(second.pid)
        assert 64 << 20 < used < 256 << 20
