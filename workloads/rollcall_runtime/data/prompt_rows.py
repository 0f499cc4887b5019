"""The prompts of one source, as tokens and as rows for a reward function."""

from __future__ import annotations

import json
import logging
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import date, time
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from rollcall_protocol.prompts.prompt import Prompt
from rollcall_protocol.sampling_config import sampling_of
from rollcall_runtime.data.checked_column import CheckedColumn, check_column
from rollcall_runtime.data.row_kind import RowKind, find_column
from rollcall_runtime.data.templated_rows import open_source
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

MAX_ROW_BYTES = 1 << 16  # of JSON, which travels to the rollout with every lease of the prompt


@dataclass(frozen=True, slots=True)
class PromptRows:
    """Made by `open_prompt_rows`; see RowReader."""

    rows: Rows
    source: DataSource
    field: str
    column: CheckedColumn
    model: ModelInput
    limit: LengthLimit
    sampling: SamplingConfig

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, number: int) -> Prompt | None:
        row, place = self.rows.row(number), self.rows.place(number)
        self.check_sampling(row, place)
        tokens = self._tokens(row[self.column.name], place)
        kept = self.limit.kept(len(tokens), place=place, field=self.field)
        if kept is None:
            return None
        cut = len(tokens) > self.limit.tokens
        return Prompt(tuple(tokens[kept]), self._for_reward(row, place), truncated=cut)

    def place(self, number: int) -> str:
        return self.rows.place(number)

    def close(self) -> None:
        self.rows.close()

    def check_sampling(self, row: dict[str, Any], place: str) -> None:
        """SpecError names row and column if the row's own settings of sampling cannot be used."""
        try:
            sampling_of(self.sampling, row)
        except ValueError as error:
            problem = f"{place}: {self.sampling.column} (spec.algorithm.sampling.column): {error}"
            raise SpecError(self.field, problem) from error

    def check_need(self, need: RowNeeds) -> None:
        """SpecError names the first row that the reward cannot use."""
        travelling = self.source.columns or self.rows.columns
        read = [name for name in need.columns if name in travelling]
        if not read:
            problem = f"the reward reads the column {need.columns[0]!r}, which no row brings it"
            advice = f"correct {need.field}, or the `columns` of the source"
            raise SpecError(self.field, f"{self.rows.place(0)}: {problem}; {advice}")
        for number, row in enumerate(self.rows.scan(*read)):
            wanted = {name: row[name] for name in read if name in row}
            try:
                # As it travels: dates and the like are text then.
                need.check(json.loads(json.dumps(wanted, default=_as_text)))
            except (TypeError, ValueError) as error:
                problem = f"{self.rows.place(number)}: the reward cannot use this row: {error}"
                raise SpecError(self.field, problem) from error

    def warn_of_little_room(self, prompts: Mapping[int, Prompt | None]) -> None:
        """Log the longest of `prompts`, by their numbers, whose response cannot be whole."""
        context, found = self.model.context, None
        for number, prompt in prompts.items():
            if prompt is None or context is None:
                continue
            asked, length = sampling_of(self.sampling, prompt.row).max_tokens, len(prompt.tokens)
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

    def _tokens(self, value: Any, place: str) -> list[int]:
        model = self.model
        match self.column.kind:
            case RowKind.TEXT:
                return model.text_tokens(value)
            case RowKind.TOKENS:
                return list(value)
            case RowKind.CHAT:
                if value[-1]["role"] == "assistant":
                    problem = f"{place}: the chat ends with the assistant's turn"
                    raise SpecError(self.field, f"{problem}; a prompt ends before it")
                text = model.chat_text(value, answer_follows=True, place=place, field=self.field)
                return model.tokenizer.encode(text)

    def _for_reward(self, row: dict[str, Any], place: str) -> dict[str, Any]:
        wanted = self.source.columns or [name for name in row if name != self._tokens_column]
        own = self.sampling.column
        if own in row and own not in wanted:  # the rollout reads it
            wanted = [*wanted, own]
        for name in wanted:
            if name not in row:
                raise SpecError(self.field, f"{place}: there is no column {name!r}")
        try:
            text = json.dumps({name: row[name] for name in wanted}, default=_as_text)
        except TypeError as error:
            problem = f"{place}: {error}, which a reward function cannot get"
            raise SpecError(self.field, f"{problem}; choose others by `columns`") from error
        if len(text) > MAX_ROW_BYTES:
            problem = f"{place}: the columns have {len(text)} bytes, and {MAX_ROW_BYTES} may travel"
            raise SpecError(self.field, f"{problem}; choose fewer by `columns`")
        found: dict[str, Any] = json.loads(text)
        return found

    @property
    def _tokens_column(self) -> str | None:
        """The reward function gets the prompt's tokens anyway."""
        return self.column.name if self.column.kind is RowKind.TOKENS else None


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
        column = check_column(rows, name, model=model, field=field)
        found = PromptRows(rows, source, field, column, model, limit, sampling)
        if sampling.column:
            read = sampling.column if sampling.column in rows.columns else name
            for number, row in enumerate(rows.scan(read)):
                found.check_sampling(row, rows.place(number))
        for need in needs:
            found.check_need(need)
        # What cannot be used shows before the first step.
        longest = {number: found.read(number) for number in column.longest}
        found.warn_of_little_room(longest)
        undo.pop_all()
    return found


def _as_text(value: Any) -> str:
    """For json.dumps: dates and decimals of tables. TypeError for bytes and the like."""
    if isinstance(value, (date, time)):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    raise TypeError(f"a column holds {type(value).__name__}")
