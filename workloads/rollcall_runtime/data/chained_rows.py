"""Rows of several files, one after the other."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rollcall_runtime.data.rows import Rows


class ChainedRows:
    """See Rows: those of `parts`, some of which may have none."""

    def __init__(self, parts: Sequence[Rows]) -> None:
        self._parts = parts
        self._ends = list(accumulate(map(len, parts)))

    @property
    def columns(self) -> Sequence[str]:
        return tuple(
            dict.fromkeys(name for part in self._parts if len(part) for name in part.columns)
        )

    def __len__(self) -> int:
        return self._ends[-1]

    def row(self, number: int) -> dict[str, Any]:
        part, within = self._find(number)
        return part.row(within)

    def scan(self, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
        for part in self._parts:
            yield from part.scan(columns)

    def place(self, number: int) -> str:
        part, within = self._find(number)
        return part.place(within)

    def close(self) -> None:
        for part in self._parts:
            part.close()

    def _find(self, number: int) -> tuple[Rows, int]:
        place = bisect_right(self._ends, number)
        return self._parts[place], number - (self._ends[place - 1] if place else 0)
