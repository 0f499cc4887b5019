"""Callers of an owner get away at once; its threads see their calls through."""

import threading
import time
from collections.abc import Iterator

import pytest

from rollcall_runtime.sync.engines.common.abandonable_calls import Owner
from rollcall_runtime.sync.errors import AbortedError, TimedOutError


class Owned:
    """An owner whose calls block until `gate` opens."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.cleanups = 0
        self.owner = Owner("owned", cleanup=self.clean)

    def clean(self) -> None:
        self.cleanups += 1

    def block(self) -> str:
        self.gate.wait(5)
        return "done"


@pytest.fixture
def owned() -> Iterator[Owned]:
    made = Owned()
    yield made
    made.gate.set()
    made.owner.abandon()
    assert made.owner.gone.wait(5)
    assert made.cleanups == 1


def test_a_call_returns_what_its_function_returns(owned: Owned) -> None:
    assert [owned.owner.call(lambda: 42, timeout=5) for _ in range(100)] == [42] * 100


def test_a_call_raises_what_its_function_raises(owned: Owned) -> None:
    with pytest.raises(ZeroDivisionError):
        owned.owner.call(lambda: 1 / 0, timeout=5)
    assert owned.owner.call(lambda: 42, timeout=5) == 42


def test_nothing_runs_between_calls(owned: Owned) -> None:
    owned.owner.call(lambda: 42, timeout=5)
    deadline = time.monotonic() + 5
    while any(thread.name == "owned" for thread in threading.enumerate()):
        assert time.monotonic() < deadline


def test_a_call_gives_up_at_its_timeout(owned: Owned) -> None:
    with pytest.raises(TimedOutError, match="not done"):
        owned.owner.call(owned.block, timeout=0.01)
    with pytest.raises(TimedOutError, match="still stuck"):
        owned.owner.call(lambda: 42, timeout=5)


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
    assert moments[0] - abandoned < 0.1
    assert owned.cleanups == 0
    owned.gate.set()
    assert owned.owner.gone.wait(5)
    assert owned.cleanups == 1


def test_an_idle_owner_is_cleaned_up_when_abandoned(owned: Owned) -> None:
    owned.owner.abandon()
    assert owned.owner.gone.wait(5)


def test_nothing_can_be_called_after_abandoning(owned: Owned) -> None:
    owned.owner.abandon()
    owned.owner.abandon()
    with pytest.raises(AbortedError):
        owned.owner.call(lambda: 42, timeout=1)
