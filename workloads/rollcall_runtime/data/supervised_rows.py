"""Rows for supervised training: tokens, and which of them are learnt."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from rollcall_runtime.data.chat_labels import label_chat
from rollcall_runtime.data.checked_column import CheckedColumn, check_column
from rollcall_runtime.data.data_identity import content_of
from rollcall_runtime.data.length_limit import LengthLimit, length_limit
from rollcall_runtime.data.row_kind import RowKind, find_column
from rollcall_runtime.data.row_mix import RowMix, open_mix
from rollcall_runtime.data.templated_rows import open_source
from rollcall_runtime.data.token_places import token_places
from rollcall_runtime.data.tools import tools_of
from rollcall_runtime.data.unread_columns import name_unread
from rollcall_runtime.worker.errors import SpecError

if TYPE_CHECKING:
    from rollcall_protocol.data_config import DataConfig, DataSource
    from rollcall_runtime.data.model_input import ModelInput
    from rollcall_runtime.data.rows import Rows

COMPLETION = "completion"  # the column beside the prompt's


@dataclass(frozen=True, slots=True)
class LabelledSequence:
    """`learnt[i]`: the model learns to predict `tokens[i]` from those before it."""

    tokens: list[int]
    learnt: list[bool]
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class SupervisedRows:
    """Made by `open_supervised_rows`; see RowReader."""

    rows: Rows
    field: str
    column: CheckedColumn
    model: ModelInput
    limit: LengthLimit

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, number: int) -> LabelledSequence | None:
        """See RowReader; a row is left out too if the limit leaves nothing to learn of it."""
        row, place = self.rows.row(number), self.rows.place(number)
        tokens, learnt = self._labelled(row, place)
        kept = self.limit.kept(len(tokens), place=place, field=self.field)
        if kept is None or not any(learnt[kept][1:]):
            return None
        return LabelledSequence(tokens[kept], learnt[kept], len(tokens) > self.limit.tokens)

    def place(self, number: int) -> str:
        return self.rows.place(number)

    def content(self) -> str:
        return content_of(self.rows, self.column.name)

    def close(self) -> None:
        self.rows.close()

    def _labelled(self, row: dict[str, Any], place: str) -> tuple[list[int], list[bool]]:
        prompt, completion = row[self.column.name], row.get(COMPLETION)
        match self.column.kind:
            case RowKind.CHAT:
                both = [*prompt, *(completion or ())]
                first = len(prompt) if completion else 0
                return label_chat(
                    both,
                    model=self.model,
                    first=first,
                    tools=tools_of(row, place=place, field=self.field),
                    place=place,
                    field=self.field,
                )
            case RowKind.TOKENS:
                tokens = [*prompt, *(completion or ())]
                return tokens, [number >= len(prompt) for number in range(len(tokens))]
            case RowKind.TEXT:
                return self._labelled_text(prompt, completion or "")

    def _labelled_text(self, prompt: str, completion: str) -> tuple[list[int], list[bool]]:
        """The completion is followed by a token that ends a response."""
        tokenizer = self.model.tokenizer
        encoded = tokenizer.library(prompt + completion, return_offsets_mapping=True)
        tokens = list(encoded["input_ids"])
        # Special tokens that the tokenizer adds have no characters. One token may hold the prompt's
        # last space and the completion's first word.
        places = zip(*token_places(encoded["offset_mapping"]), strict=True)
        learnt = [end > max(start, len(prompt)) for start, end in places]
        if tokenizer.end is not None and tokens[-1] not in tokenizer.eos:
            return [*tokens, tokenizer.end], [*learnt, True]
        learnt[-1] = True
        return tokens, learnt


def open_supervised_rows(
    source: DataSource, field: str, *, model: ModelInput, limit: LengthLimit
) -> SupervisedRows:
    """Rows of chats, or of prompts with completions; SpecError at `field` names what is wrong.

    All rows are checked; the longest are tokenized.
    """
    with ExitStack() as undo:
        rows = open_source(source, field=field)
        undo.callback(rows.close)
        name = find_column(rows.columns, source.prompt_column, place=rows.place(0), field=field)
        column = check_column(rows, name, model=model, field=field)
        if COMPLETION in column.columns:
            completion = check_column(rows, COMPLETION, model=model, field=field)
            if completion.kind is not column.kind:
                problem = (
                    f"{rows.place(0)}: {name} holds {column.kind}, {COMPLETION} {completion.kind}"
                )
                raise SpecError(field, f"{problem}; both must be of one kind")
        elif column.kind is not RowKind.CHAT:
            problem = (
                f"{rows.place(0)}: a prompt that is {column.kind} needs a column {COMPLETION!r}"
            )
            raise SpecError(field, f"{problem} with what is to be learnt")
        name_unread(source, column, (COMPLETION,), model=model, field=field)
        found = SupervisedRows(rows, field, column, model, limit)
        for number in column.longest:  # what cannot be used shows before the first step
            found.read(number)
        undo.pop_all()
    return found


def open_supervised(
    data: DataConfig, *, model: ModelInput, field: str = ""
) -> RowMix[LabelledSequence]:
    """The rows to learn. SpecError names file and line, or row, of what is wrong with them.

    `field` is that of a source outside of spec.data.
    """
    limit = length_limit(data, model)
    open_reader = partial(open_supervised_rows, model=model, limit=limit)
    return open_mix(data, open_reader, field=field)
