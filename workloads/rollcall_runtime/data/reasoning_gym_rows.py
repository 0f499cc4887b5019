"""Rows that reasoning-gym makes up: no file, and each question always the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rollcall_protocol.data_config import REASONING_GYM
from rollcall_runtime.tasks.reasoning_gym_task import open_task
from rollcall_runtime.worker.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rollcall_protocol.data_config import DataSource

_TRIED = 32  # rows that are made before the first step


class ReasoningGymRows:
    """See Rows. Only some rows are scanned, since each is made when it is read."""

    def __init__(self, source: DataSource, *, field: str) -> None:
        self._name, self._field = source.name, field
        try:
            self._task = open_task(source.name.removeprefix(REASONING_GYM), source.config)
        except ImportError as error:
            problem = f"{source.name!r} needs the package reasoning-gym: {error}"
            raise SpecError(field, f"{problem}; add it to the image of the trainer") from error
        except ValueError as error:
            raise SpecError(field, str(error)) from error

    @property
    def columns(self) -> Sequence[str]:
        return tuple(self.row(0))

    def __len__(self) -> int:
        return len(self._task)

    def row(self, number: int) -> dict[str, Any]:
        try:
            return self._task.row(number)
        except Exception as error:  # a hundred generators, and each has errors of its own
            problem = f"{self.place(number)}: {type(error).__name__}: {error}"
            raise SpecError(self._field, problem) from error

    def scan(self, columns: Sequence[str]) -> Iterator[dict[str, Any]]:  # noqa: ARG002 - a row is made whole
        return (self.row(number) for number in range(min(_TRIED, len(self))))

    def place(self, number: int) -> str:
        return f"{self._name}, number {number}"

    def close(self) -> None:
        """Nothing to do: rows are made up, and no file is open."""
