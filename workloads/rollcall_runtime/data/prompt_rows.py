"""The prompts of one source, as tokens and as rows for a reward function."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rollcall_protocol.prompts.prompt import Prompt
from rollcall_protocol.sampling_config import sampling_of
from rollcall_runtime.data.checked_column import CheckedColumn, check_column
from rollcall_runtime.data.data_identity import content_of
from rollcall_runtime.data.row_kind import RowKind, find_column
from rollcall_runtime.data.row_values import as_it_travels
from rollcall_runtime.data.templated_rows import open_source
from rollcall_runtime.data.tools import tools_of
from rollcall_runtime.data.travelling_columns import TravellingColumns
from rollcall_runtime.data.unread_columns import name_preferences, name_unread
from rollcall_runtime.worker.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rollcall_protocol.data_config import DataSource
    from rollcall_protocol.sampling_config import SamplingConfig
    from rollcall_runtime.data.length_limit import LengthLimit
    from rollcall_runtime.data.model_input import ModelInput
    from rollcall_runtime.data.rows import Rows
    from rollcall_runtime.tasks.row_needs import RowNeeds

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PromptRows:
    """Made by `open_prompt_rows`; see RowReader."""

    rows: Rows
    field: str
    column: CheckedColumn
    model: ModelInput
    limit: LengthLimit
    travelling: TravellingColumns

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, number: int) -> Prompt | None:
        row, place = self.rows.row(number), self.rows.place(number)
        tokens = self._tokens(row, place)
        kept = self.limit.kept(len(tokens), place=place, field=self.field)
        if kept is None:
            return None
        cut = len(tokens) > self.limit.tokens
        travels = self.travelling.of(row, self.column.kind, place, columns=self.column.columns)
        return Prompt(tuple(tokens[kept]), travels, truncated=cut)

    def place(self, number: int) -> str:
        return self.rows.place(number)

    def content(self) -> str:
        return content_of(self.rows, self.column.name)

    def close(self) -> None:
        self.rows.close()

    def warn_of_little_room(self, prompts: Mapping[int, Prompt | None]) -> None:
        """Log the longest of `prompts`, by their numbers, whose response cannot be whole."""
        context, found = self.model.context, None
        sampling = self.travelling.sampling
        for number, prompt in prompts.items():
            if prompt is None or context is None:
                continue
            asked, length = sampling_of(sampling, prompt.row).max_tokens, len(prompt.tokens)
            if length + asked > context and (found is None or length > found[0]):
                found = length, asked, number
        if found is not None:
            length, asked, number = found
            log.warning(
                "%s: its prompt of %d tokens leaves %d of the %d of %s for a response, and "
                "maxTokens is %d: it is cut off there; shorten it, or lower spec.data.maxTokens so "
                "that spec.data.tooLong applies",
                *(self.place(number), length, (context or 0) - length, context),
                *(self.model.bounded_by, asked),
            )

    def _tokens(self, row: dict[str, Any], place: str) -> list[int]:
        model, value = self.model, row[self.column.name]
        match self.column.kind:
            case RowKind.TEXT:
                return model.text_tokens(value)
            case RowKind.TOKENS:
                return list(value)
            case RowKind.CHAT:
                if value[-1]["role"] == "assistant":
                    problem = f"{place}: the chat ends with the assistant's turn"
                    raise SpecError(self.field, f"{problem}; a prompt ends before it")
                text = model.chat_text(
                    value,
                    answer_follows=True,
                    tools=tools_of(row, place=place, field=self.field),
                    place=place,
                    field=self.field,
                )
                return model.tokenizer.encode(text)


def open_prompt_rows(
    source: DataSource,
    field: str,
    *,
    model: ModelInput,
    limit: LengthLimit,
    sampling: SamplingConfig,
    needs: Sequence[RowNeeds] = (),
) -> PromptRows:
    """Find the column of the prompts and check it in all rows; the longest are tokenized.

    SpecError at `field` names the row that is wrong.
    """
    with ExitStack() as undo:
        rows = open_source(source, field=field)
        undo.callback(rows.close)
        name = find_column(rows.columns, source.prompt_column, place=rows.place(0), field=field)
        travelling = TravellingColumns(name, source.columns, sampling, field)

        def look(row: dict[str, Any], kind: RowKind, place: str) -> None:
            travelling.check(row, kind, place)
            for need in needs:
                _check_need(need, row, travelling, place)

        column = check_column(
            rows,
            name,
            model=model,
            field=field,
            also=(*(source.columns or rows.columns), sampling.column),
            look=look,
        )
        travelling.check_names(column.columns, rows.place(0))
        read = (*source.columns, sampling.column) if source.columns else column.columns
        name_unread(source, column, read, model=model, field=field)
        name_preferences(source, column.columns, field)
        found = PromptRows(rows, field, column, model, limit, travelling)
        # What cannot be used shows before the first step.
        longest = {number: found.read(number) for number in column.longest}
        found.warn_of_little_room(longest)
        undo.pop_all()
    return found


def _check_need(
    need: RowNeeds, row: Mapping[str, Any], travelling: TravellingColumns, place: str
) -> None:
    """SpecError if the reward cannot use what travels of the row at `place`."""
    chosen, field = travelling.chosen, travelling.field
    read = {
        name: row[name] for name in need.columns if name in row and (not chosen or name in chosen)
    }
    if not read:
        problem = f"the reward reads the column {need.columns[0]!r}, which the row does not bring"
        advice = f"correct {need.field}, or the `columns` of the source"
        raise SpecError(field, f"{place}: {problem}; {advice}")
    try:
        need.check(as_it_travels(read, place=place, field=field))
    except ValueError as error:
        problem = f"{place}: the reward cannot use this row: {error}"
        raise SpecError(field, problem) from error
