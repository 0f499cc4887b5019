"""Rows of files, data sets and generators by number, whatever the format."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class Rows(Protocol):
    """At least one row, each a dictionary of JSON-like values by column, see `plain_row`.

    Reading a row may raise SpecError, which names its place.
    """

    @property
    def columns(self) -> Sequence[str]:
        """The names of the columns; of JSON Lines those of the first row."""

    def __len__(self) -> int: ...

    def row(self, number: int) -> dict[str, Any]:
        """Row `number`, from 0."""

    def scan(self, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
        """All rows in their order, each with what it has of `columns` at least; of rows that are
        made, some.
        """

    def place(self, number: int) -> str:
        """Where row `number` is, for messages: file and line, or data set and row."""

    def close(self) -> None:
        """Free what is open; harmless twice."""
