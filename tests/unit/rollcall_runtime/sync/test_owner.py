"""Callers of an owner's thread get away at once; the thread sees its call through."""

import threading
import time
from collections.abc import Iterator

import pytest

from rollcall_runtime.sync.errors import AbortedError, TimedOutError
from rollcall_runtime.sync.owner import OwnerThread


class Owned:
    """An owner whose calls block until `gate` opens."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.cleaned = threading.Event()
        self.owner = OwnerThread("owned", cleanup=self.cleaned.set)
        self.owner.start()

    def block(self) -> str:
        self.gate.wait(5)
        return "done"


@pytest.fixture
def owned() -> Iterator[Owned]:
    made = Owned()
    yield made
    made.gate.set()
    made.owner.abandon()
    assert made.owner.join(5)


def test_a_call_returns_what_its_function_returns(owned: Owned) -> None:
    assert owned.owner.call(lambda: 42, timeout=1) == 42


def test_a_call_raises_what_its_function_raises(owned: Owned) -> None:
    with pytest.raises(ZeroDivisionError):
        owned.owner.call(lambda: 1 / 0, timeout=1)
    assert owned.owner.call(lambda: 42, timeout=1) == 42


def test_a_call_gives_up_at_its_timeout(owned: Owned) -> None:
    with pytest.raises(TimedOutError):
        owned.owner.call(owned.block, timeout=0.01)


def test_abandoning_frees_the_caller_but_not_the_thread(owned: Owned) -> None:
    moments: list[float] = []

    def call() -> None:
        with pytest.raises(AbortedError):
            owned.owner.call(owned.block, timeout=5)
        moments.append(time.monotonic())

    caller = threading.Thread(target=call)
    caller.start()
    time.sleep(0.02)
    abandoned = time.monotonic()
    owned.owner.abandon()
    caller.join(5)
    assert moments[0] - abandoned < 0.05
    assert not owned.owner.join(0.02)
    assert not owned.cleaned.is_set()
    owned.gate.set()
    assert owned.owner.join(5)
    assert owned.cleaned.is_set()


def test_nothing_can_be_called_after_abandoning(owned: Owned) -> None:
    owned.owner.abandon()
    owned.owner.abandon()
    with pytest.raises(AbortedError):
        owned.owner.call(lambda: 42, timeout=1)
