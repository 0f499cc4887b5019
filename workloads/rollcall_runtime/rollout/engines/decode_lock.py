"""A lock that admits one decode step or weight update at a time, and none during a pause."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Condition

from rollcall_runtime.rollout.inference_engine import PauseMode


@dataclass(frozen=True, slots=True)
class Ticket:
    """Permits a generation to take steps until an abort or `deadline` (time.monotonic)."""

    aborts: int
    deadline: float


class DecodeLock:
    """Decode steps and weight updates exclude each other; pauses begin between steps.

    Any thread may call. One step or update holds the lock at a time (a model on one core gains
    nothing from more). An update goes before waiting steps, so that busy generations cannot starve
    it.
    """

    def __init__(self) -> None:
        self._condition = Condition()
        self._inside = False  # a step or an update
        self._updates = 0  # updates that wait
        self._paused = False
        self._draining = 0  # pauses that wait for generations to end
        self._running = 0  # running generations
        self._aborts = 0  # counted, so that a step notices one since its ticket was issued
        self._closed = False

    @contextmanager
    def generation(self, *, timeout: float) -> Iterator[Ticket]:
        """Hold this during a generation. RuntimeError once closed.

        A pause delays the start; if it lasts longer than `timeout` seconds no step is permitted.
        """
        deadline = time.monotonic() + timeout
        with self._condition:
            self._condition.wait_for(
                lambda: self._closed or not (self._paused or self._draining), timeout=timeout
            )
            if self._closed:
                raise RuntimeError("the inference engine is closed")
            self._running += 1
            ticket = Ticket(self._aborts, deadline)
        try:
            yield ticket
        finally:
            with self._condition:
                self._running -= 1
                self._condition.notify_all()

    @contextmanager
    def step(self, ticket: Ticket) -> Iterator[bool]:
        """True: decode now, the lock is held. False: end the generation, unfinished."""
        with self._condition:
            self._condition.wait_for(
                lambda: self._aborts != ticket.aborts or self._free(),
                timeout=max(0.0, ticket.deadline - time.monotonic()),
            )
            current = self._aborts == ticket.aborts and time.monotonic() < ticket.deadline
            permitted = current and self._free()
            self._inside = self._inside or permitted
        try:
            yield permitted
        finally:
            if permitted:
                self._leave()

    @contextmanager
    def update(self, *, timeout: float) -> Iterator[None]:
        """Hold the lock to update weights. TimeoutError if a step lasts longer than `timeout`."""
        with self._condition:
            self._updates += 1
            entered = self._condition.wait_for(lambda: not self._inside, timeout=timeout)
            self._updates -= 1
            if not entered:
                self._condition.notify_all()
                raise TimeoutError(f"a decode step was still running after {timeout} s")
            self._inside = True
        try:
            yield
        finally:
            self._leave()

    def pause(self, mode: PauseMode, *, timeout: float) -> None:
        """See InferenceEngine.pause. During a pause only another one that aborts has an effect."""
        with self._condition:
            if mode is PauseMode.ABORT:
                self._abort()
            elif self._paused:
                return
            if mode is PauseMode.KEEP:
                self._paused = True
                if not self._condition.wait_for(lambda: not self._inside, timeout=timeout):
                    self._paused = False
                    self._condition.notify_all()
                    raise TimeoutError(f"a decode step was still running after {timeout} s")
                return
            self._draining += 1
            try:
                self._until_idle(timeout)
                self._paused = True
            finally:
                self._draining -= 1
                self._condition.notify_all()

    def resume(self) -> None:
        """See InferenceEngine.resume."""
        with self._condition:
            self._paused = False
            self._condition.notify_all()

    def close(self, *, timeout: float) -> None:
        """End all generations; TimeoutError if one still runs after `timeout` seconds."""
        with self._condition:
            self._closed = True
            self._abort()
            self._until_idle(timeout)

    def _free(self) -> bool:
        return not (self._inside or self._updates or self._paused)

    def _leave(self) -> None:
        with self._condition:
            self._inside = False
            self._condition.notify_all()

    def _abort(self) -> None:
        self._aborts += 1
        self._condition.notify_all()

    def _until_idle(self, timeout: float) -> None:
        if not self._condition.wait_for(lambda: self._running == 0, timeout=timeout):
            raise TimeoutError(f"generations were still running after {timeout} s")
