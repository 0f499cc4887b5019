"""Which containers use too much memory; pages that forks share count once."""

import os
import sys

import pytest

from rollcall_local.kubelet.marks import MARK
from rollcall_local.kubelet.memory import above_limit
from tests.unit.rollcall_local.kubelet.marked_programs import found_in_time, line, program

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux alone shows it")

MIB = 1 << 20
CONTAINER = f"{os.getpid()}/memory"
# 64 MiB, which three forks share.
FORKS = """
import gc, os, time
x = b"1" * (64 << 20)
gc.freeze()
children = []
for _ in range(3):
    child = os.fork()
    if not child:
        time.sleep(300)
    children.append(child)
print(os.getpid(), *children, flush=True)
time.sleep(300)
"""


def test_a_container_is_above_its_limit_by_the_memory_of_all_its_processes() -> None:
    with program(sys.executable, "-c", FORKS, **{MARK: CONTAINER}) as process:
        found_in_time(CONTAINER, *map(int, line(process).split()))
        (used,) = above_limit({CONTAINER: 32 * MIB}).values()
        assert 64 * MIB < used < 128 * MIB
        assert above_limit({CONTAINER: 128 * MIB}) == {}
        assert above_limit({"another": 0, CONTAINER: used - 10 * MIB}).keys() == {CONTAINER}


def test_containers_without_processes_use_nothing() -> None:
    assert above_limit({"uid-none/worker": 0}) == {}
