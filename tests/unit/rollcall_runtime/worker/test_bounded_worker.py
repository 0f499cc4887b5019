"""Calls on what a model wrote end within their bounds, and cost their own process alone."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollcall_runtime.worker import bounded_worker
from rollcall_runtime.worker.bounded_worker import (
    BoundedCallError,
    BoundedWorker,
    OutOfBoundsError,
)

MODULE = """\
import os, time

def add(a, b): return a + b
def raises(): return {}["key"]
def ends(): os._exit(0)
def process(): return os.getpid()
def computes(): return len(str(9**9**9))
def turns():
    while time.process_time() < 20: pass
def sleeps(): time.sleep(60)
def fills(): return len(bytearray(1 << 30))
def deepens(): return deepens()
"""


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BoundedWorker]:
    (tmp_path / "bounded_module.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    made = BoundedWorker("bounded_module", memory=256 << 20)
    yield made
    made.close()


def call(worker: BoundedWorker, function: str, *arguments: object, within: float = 30.0) -> object:
    return worker.call(function, *arguments, seconds=1.0, within=within)


def test_it_gives_what_the_function_returns_or_raises(worker: BoundedWorker) -> None:
    assert call(worker, "add", 1, 2) == 3
    with pytest.raises(BoundedCallError, match=r"^KeyError: 'key'$"):
        call(worker, "raises")
    assert call(worker, "add", "a", "b") == "ab"


@pytest.mark.parametrize("function", ["computes", "fills", "deepens", "ends"])
def test_what_exceeds_its_bounds_ends_and_the_next_call_is_served(
    worker: BoundedWorker, function: str
) -> None:
    first = call(worker, "process")
    with pytest.raises(OutOfBoundsError):
        call(worker, function)
    assert call(worker, "process") != first


def test_processor_time_bounds_a_call(
    worker: BoundedWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded_worker, "_WALL", 1000)  # the clock is another bound
    began = time.monotonic()
    with pytest.raises(OutOfBoundsError):
        worker.call("turns", seconds=0.2, within=300.0)
    assert time.monotonic() - began < 20


def test_the_clock_bounds_a_call_too(worker: BoundedWorker) -> None:
    began = time.monotonic()
    with pytest.raises(OutOfBoundsError):
        call(worker, "sleeps", within=0.1)
    assert time.monotonic() - began < 10


def test_a_module_that_cannot_be_imported_says_why() -> None:
    with pytest.raises(ImportError, match=r"ModuleNotFoundError: .*no_such_module"):
        BoundedWorker("no_such_module", memory=256 << 20)


def test_its_process_ends_with_it(worker: BoundedWorker) -> None:
    pid = call(worker, "process")
    assert isinstance(pid, int)
    worker.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
