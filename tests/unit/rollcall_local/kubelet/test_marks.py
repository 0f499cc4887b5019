"""Marks of processes: which container each belongs to, also when it was forked alone."""

import os
import sys
from pathlib import Path

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
from tests.unit.rollcall_local.kubelet.marked_programs import found_in_time, line, program

CONTAINER = f"{os.getpid()}/worker"

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

# A program that shows a title of its own, and one that stays when the first is killed.
TITLED = """
import ctypes, os, sys, time
if os.fork() == 0:
    libc = ctypes.CDLL(None)
    libc.getenv.restype = ctypes.c_void_p
    mark = libc.getenv(sys.argv[1].encode()) - len(sys.argv[1]) - 1
    ctypes.memset(mark, ord("t"), len(sys.argv[1]) + 1)
    print(os.getppid(), os.getpid(), flush=True)
time.sleep(300)
"""


def runs(pid: int) -> bool:
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


def test_a_process_with_a_mark_and_its_children_are_found() -> None:
    script = "sleep 300 & echo $!; wait"
    with program("sh", "-c", script, **{MARK: CONTAINER}) as process:
        child = int(line(process))
        found_in_time(CONTAINER, process.pid, child)
        assert containers()[child] == CONTAINER
        assert {process.pid, child} <= set(marked())
        assert marked(CONTAINER[:-1]) == marked(f"{CONTAINER}2") == []
        assert end_all({process.pid: CONTAINER}, seconds=10) == []
        assert marked(CONTAINER) == []


def test_a_fork_is_found_by_the_mark_that_it_gives_itself_and_so_are_its_own() -> None:
    container = f"{os.getpid()}/" + "w" * 63
    command = (sys.executable, "-c", FORKS, container)
    with program(*command, **{ROOM: " " * ROOM_BYTES}) as process:
        first, second = map(int, line(process).split())
        found_in_time(container, first, second)
        assert process.pid not in containers()
        assert end_all({first: container}, seconds=10) == []
        assert process.wait(10) == 0


def test_a_process_whose_title_hides_its_mark_is_found_by_its_session() -> None:
    command = ("setsid", "--fork", sys.executable, "-c", TITLED, MARK)
    with program(*command, **{MARK: CONTAINER}) as process:
        first, titled = map(int, line(process).split())
        assert MARK.encode() not in Path(f"/proc/{titled}/environ").read_bytes()
        found_in_time(CONTAINER, first, titled)
        assert end_all({first: CONTAINER}, seconds=10) == []
        assert not runs(titled)


def test_a_process_does_not_find_itself() -> None:
    script = f"from rollcall_local.kubelet.marks import *; print(marked({CONTAINER!r}))"
    with program(sys.executable, "-c", script, **{MARK: CONTAINER}) as process:
        assert line(process) == "[]\n"


def test_a_process_without_room_cannot_be_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=f"the environment has no {ROOM}"):
        mark_this_process("uid/worker")
    monkeypatch.setenv(ROOM, " " * ROOM_BYTES)
    with pytest.raises(ValueError, match="the name of the container is too long"):
        mark_this_process("w" * 1000)
