"""Decode steps go one at a time; pauses and swaps come between them and never starve."""

import threading
import time
from collections.abc import Callable

import pytest

from rollcall_runtime.rollout.engines.decode_lock import DecodeLock
from rollcall_runtime.rollout.inference_engine import PauseMode

BOUND = 5.0  # seconds that no wait here comes near


class Worker:
    """A generation in a thread: up to `steps` steps, each of which waits for `go` if given."""

    def __init__(self, gate: DecodeLock, *, steps: int, go: threading.Event | None = None) -> None:
        self.done = 0
        self.inside = threading.Event()
        self.ended = threading.Event()
        self._gate, self._steps, self._go = gate, steps, go
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with self._gate.generation(timeout=BOUND) as ticket:
            for _ in range(self._steps):
                with self._gate.step(ticket) as permitted:
                    if not permitted:
                        break
                    self.inside.set()
                    if self._go is not None:
                        self._go.wait(BOUND)
                    self.done += 1
        self.ended.set()

    def join(self) -> None:
        self._thread.join(BOUND)
        assert not self._thread.is_alive()


def in_thread(call: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    return thread


def test_keep_stops_between_two_steps_and_goes_on_after() -> None:
    gate, go = DecodeLock(), threading.Event()
    worker = Worker(gate, steps=3, go=go)
    assert worker.inside.wait(BOUND)
    pausing = in_thread(lambda: gate.pause(PauseMode.KEEP, timeout=BOUND))
    assert pausing.is_alive()  # the step under way is not cut short
    go.set()
    pausing.join(BOUND)
    assert worker.done == 1
    assert not worker.ended.wait(0.05)
    gate.resume()
    worker.join()
    assert worker.done == 3


def test_abort_ends_generations_unfinished() -> None:
    gate = DecodeLock()
    gate.pause(PauseMode.KEEP, timeout=BOUND)
    gate.resume()
    go = threading.Event()
    worker = Worker(gate, steps=3, go=go)
    assert worker.inside.wait(BOUND)
    pausing = in_thread(lambda: gate.pause(PauseMode.ABORT, timeout=BOUND))
    time.sleep(0.02)
    go.set()
    pausing.join(BOUND)
    assert worker.ended.is_set()
    assert worker.done == 1


def test_abort_ends_generations_that_an_earlier_pause_keeps() -> None:
    gate, go = DecodeLock(), threading.Event()
    worker = Worker(gate, steps=2, go=go)
    assert worker.inside.wait(BOUND)
    pausing = in_thread(lambda: gate.pause(PauseMode.KEEP, timeout=BOUND))
    time.sleep(0.02)
    go.set()
    pausing.join(BOUND)
    gate.pause(PauseMode.ABORT, timeout=BOUND)
    assert worker.ended.is_set()
    assert worker.done == 1


def test_wait_lets_generations_end_and_none_begin() -> None:
    gate, go = DecodeLock(), threading.Event()
    worker = Worker(gate, steps=2, go=go)
    assert worker.inside.wait(BOUND)
    pausing = in_thread(lambda: gate.pause(PauseMode.WAIT, timeout=BOUND))
    time.sleep(0.02)
    late = Worker(gate, steps=1)
    go.set()
    pausing.join(BOUND)
    assert worker.done == 2
    assert not late.inside.wait(0.05)
    gate.resume()
    late.join()
    assert late.done == 1


def test_a_pause_that_cannot_be_had_in_time_is_none() -> None:
    gate, go = DecodeLock(), threading.Event()
    worker = Worker(gate, steps=2, go=go)
    assert worker.inside.wait(BOUND)
    for mode in (PauseMode.KEEP, PauseMode.WAIT):
        with pytest.raises(TimeoutError, match=r"still running after 0\.01 s"):
            gate.pause(mode, timeout=0.01)
    go.set()
    worker.join()
    assert worker.done == 2


def test_a_swap_goes_before_the_steps_that_wait() -> None:
    gate, go = DecodeLock(), threading.Event()
    first = Worker(gate, steps=1, go=go)
    assert first.inside.wait(BOUND)
    others = [Worker(gate, steps=50) for _ in range(3)]
    seen: list[int] = []

    def swap() -> None:
        with gate.update(timeout=BOUND):
            seen.append(sum(other.done for other in others))

    swapping = in_thread(swap)
    time.sleep(0.02)
    go.set()
    swapping.join(BOUND)
    for other in others:
        other.join()
    assert seen == [0]


def test_a_swap_does_not_wait_for_ever() -> None:
    gate, go = DecodeLock(), threading.Event()
    worker = Worker(gate, steps=2, go=go)
    assert worker.inside.wait(BOUND)
    with pytest.raises(TimeoutError), gate.update(timeout=0.01):
        pytest.fail("the step was still inside")
    go.set()
    worker.join()
    assert worker.done == 2


def test_a_generation_gets_no_step_after_its_deadline() -> None:
    gate = DecodeLock()
    gate.pause(PauseMode.KEEP, timeout=BOUND)
    with gate.generation(timeout=0.01) as ticket, gate.step(ticket) as permitted:
        assert not permitted
    gate.resume()
    with gate.step(ticket) as permitted:
        assert not permitted


def test_after_the_close_nothing_begins() -> None:
    gate = DecodeLock()
    gate.close(timeout=BOUND)
    with pytest.raises(RuntimeError, match="closed"), gate.generation(timeout=BOUND):
        pytest.fail("the gate was closed")
