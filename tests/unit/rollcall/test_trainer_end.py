"""How a `Trainer` in a `with` block ends."""

import logging
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from rollcall import Trainer

if TYPE_CHECKING:
    from rollcall.program_end import ProgramEnd


class Ending(Trainer):
    """Has no coordinator: it notes what becomes of it."""

    def __init__(self) -> None:
        self._closed = self._finished = False
        self._last_step = self._ending = None
        self.done: list[str] = []

    def train(self) -> None:
        """As `finish_at_exit(3)`, which would be called when pytest ends."""
        self._last_step, self._ending = 3, cast("ProgramEnd", SimpleNamespace(failed=False))

    def close(self) -> None:
        self._closed = True
        self.done.append("closed")

    def finish(self, step: int) -> None:
        self.done.append(f"finished after {step}")

    def stay(self) -> None:
        """There is no pod."""


def test_what_was_to_finish_at_the_programs_end_outlives_its_block() -> None:
    with Ending() as trainer:
        trainer.train()
    assert trainer.done == []
    trainer._exit()
    assert trainer.done == ["finished after 3"]


def test_without_it_or_after_an_error_the_coordinator_ends_with_the_block() -> None:
    with Ending() as unfinished:
        pass
    assert unfinished.done == ["closed"]
    failed = Ending()
    failed.train()
    with pytest.raises(ValueError, match="wrong"), failed:
        raise ValueError("wrong")
    assert failed.done == ["closed"]


def test_one_that_was_closed_after_training_says_that_the_job_has_not_succeeded(
    caplog: pytest.LogCaptureFixture,
) -> None:
    trainer = Ending()
    trainer.train()
    trainer.close()
    with caplog.at_level(logging.WARNING, logger="rollcall"):
        trainer._exit()
    assert trainer.done == ["closed"]
    assert "the Trainer was closed after training, so the job has not succeeded" in caplog.text
