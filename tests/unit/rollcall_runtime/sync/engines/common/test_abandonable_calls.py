"""Abandoned calls return to their callers at once; their threads finish them."""

import threading
import time
from collections.abc import Iterator

import pytest

from rollcall_runtime.sync.engines.common.abandonable_calls import AbandonableCalls
from rollcall_runtime.sync.errors import AbortedError, TimedOutError


class BlockableCalls:
    """Calls that block until `gate` is set."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.cleanups = 0
        self.calls = AbandonableCalls("abandonable", cleanup=self.clean)

    def clean(self) -> None:
        self.cleanups += 1

    def block(self) -> str:
        self.gate.wait(5)
        return "done"


@pytest.fixture
def abandonable() -> Iterator[BlockableCalls]:
    made = BlockableCalls()
    yield made
    made.gate.set()
    made.calls.abandon()
    assert made.calls.cleaned_up.wait(5)
    assert made.cleanups == 1


def test_a_call_returns_what_its_function_returns(abandonable: BlockableCalls) -> None:
    assert [abandonable.calls.call(lambda: 42, timeout=5) for _ in range(100)] == [42] * 100


def test_a_call_raises_what_its_function_raises(abandonable: BlockableCalls) -> None:
    with pytest.raises(ZeroDivisionError):
        abandonable.calls.call(lambda: 1 / 0, timeout=5)
    assert abandonable.calls.call(lambda: 42, timeout=5) == 42


def test_nothing_runs_between_calls(abandonable: BlockableCalls) -> None:
    abandonable.calls.call(lambda: 42, timeout=5)
    deadline = time.monotonic() + 5
    while any(thread.name == "abandonable" for thread in threading.enumerate()):
        assert time.monotonic() < deadline


def test_a_call_gives_up_at_its_timeout(abandonable: BlockableCalls) -> None:
    with pytest.raises(TimedOutError, match=r"timed out after 0\.01 s"):
        abandonable.calls.call(abandonable.block, timeout=0.01)
    with pytest.raises(TimedOutError, match="still running"):
        abandonable.calls.call(lambda: 42, timeout=5)


@pytest.mark.alone
def test_abandoning_frees_the_caller_but_not_the_thread(abandonable: BlockableCalls) -> None:
    moments: list[float] = []

    def call() -> None:
        with pytest.raises(AbortedError):
            abandonable.calls.call(abandonable.block, timeout=5)
        moments.append(time.monotonic())

    caller = threading.Thread(target=call)
    caller.start()
    time.sleep(0.02)
    abandoned = time.monotonic()
    abandonable.calls.abandon()
    caller.join(5)
    assert moments[0] - abandoned < 0.1
    assert abandonable.cleanups == 0
    abandonable.gate.set()
    assert abandonable.calls.cleaned_up.wait(5)
    assert abandonable.cleanups == 1


def test_abandoning_without_a_running_call_cleans_up(abandonable: BlockableCalls) -> None:
    abandonable.calls.abandon()
    assert abandonable.calls.cleaned_up.wait(5)


def test_nothing_can_be_called_after_abandoning(abandonable: BlockableCalls) -> None:
    abandonable.calls.abandon()
    abandonable.calls.abandon()
    with pytest.raises(AbortedError):
        abandonable.calls.call(lambda: 42, timeout=1)
