"""The columns of a row that travel with its prompt: to the reward function, and to sampling."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rollcall_protocol.sampling_config import sampling_of
from rollcall_runtime.data.row_kind import RowKind
from rollcall_runtime.data.row_values import check_json, json_text
from rollcall_runtime.worker.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollcall_protocol.sampling_config import SamplingConfig

MAX_ROW_BYTES = 1 << 16  # of JSON, which travels to the rollout with every lease of the prompt


@dataclass(frozen=True, slots=True)
class TravellingColumns:
    """`chosen` of a row, all if there are none, and the column of `sampling`.

    Without the prompt's tokens in `prompt`, which the reward function gets anyway.
    """

    prompt: str
    chosen: Sequence[str]
    sampling: SamplingConfig
    field: str

    def check(self, row: dict[str, Any], kind: RowKind, place: str) -> None:
        """SpecError at `field` if the row is no JSON, or its settings of sampling cannot be used.

        Not for its size: a row that is dropped for its length does not travel.
        """
        try:
            sampling_of(self.sampling, row)
        except ValueError as error:
            problem = f"{place}: {self.sampling.column} (spec.algorithm.sampling.column): {error}"
            raise SpecError(self.field, problem) from error
        whole = not self.chosen and kind is not RowKind.TOKENS
        travels = row if whole else self._values(row, kind, tuple(row))
        check_json(travels, place=place, field=self.field)

    def check_names(self, columns: Sequence[str], place: str) -> None:
        """SpecError at `field` if no row has one of those chosen."""
        for name in self.chosen:
            if name not in columns:
                raise SpecError(self.field, f"{place}: there is no column {name!r}")

    def of(
        self, row: dict[str, Any], kind: RowKind, place: str, *, columns: Sequence[str]
    ) -> dict[str, Any]:
        """What travels: null for what it lacks of `columns`. SpecError if that is too large."""
        values = self._values(row, kind, columns)
        text = json_text(values, place=place, field=self.field)
        if len(text) > MAX_ROW_BYTES:
            problem = f"{place}: the columns have {len(text)} bytes, and {MAX_ROW_BYTES} may travel"
            raise SpecError(self.field, f"{problem}; choose fewer by `columns`")
        found: dict[str, Any] = json.loads(text)
        return found

    def _values(self, row: dict[str, Any], kind: RowKind, columns: Sequence[str]) -> dict[str, Any]:
        own = self.sampling.column
        wanted = self.chosen or [
            name for name in columns if kind is not RowKind.TOKENS or name != self.prompt
        ]
        values = {name: row.get(name) for name in wanted}
        if own in row:  # the rollout reads it
            values[own] = row[own]
        return values
