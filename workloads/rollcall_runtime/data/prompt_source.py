"""Prompts by number: prompt i of a job's data and seed never changes.

So a checkpoint needs nothing but the number of the next prompt (the cursor), and a prompt that is
handed out twice is the same prompt. A prompt that is dropped for its length keeps its number.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from rollcall_protocol.data_config import FRONT
from rollcall_protocol.prompts.prompt import Prompt
from rollcall_protocol.sampling_config import SamplingConfig
from rollcall_runtime.data.data_identity import DataIdentity, identity_of
from rollcall_runtime.data.length_limit import LengthLimit, length_limit
from rollcall_runtime.data.prompt_rows import open_prompt_rows
from rollcall_runtime.data.row_mix import RowMix, count_rows, open_mix
from rollcall_runtime.tasks import first_letter, reverse
from rollcall_runtime.worker.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rollcall_protocol.data_config import DataConfig
    from rollcall_runtime.data.model_input import ModelInput
    from rollcall_runtime.tasks.row_needs import RowNeeds


_REVERSE, _FIRST_LETTER = _MADE_UP = ("builtin:reverse", "builtin:first-letter")
_ALL_ALIKE = SamplingConfig()  # no row has settings of its own


class PromptSource(Protocol):
    """An endless, numbered sequence of prompts."""

    def prompt(self, number: int) -> Prompt | None:
        """Prompt `number` (from 0), always the same; None if it is left out for its length.

        SpecError if its row cannot be used, or if too many in a row were left out.
        """

    def place(self, number: int) -> str:
        """Where prompt `number` comes from."""

    def close(self) -> None:
        """Free what is open; harmless twice."""


@dataclass(frozen=True, slots=True)
class ReversePrompts:
    """Prompts of `builtin:reverse`: the symbols follow from seed and number alone."""

    seed: int

    def prompt(self, number: int) -> Prompt:
        return Prompt(reverse.prompt(number, seed=self.seed))

    def place(self, number: int) -> str:
        return f"builtin:reverse, number {number}"

    def close(self) -> None:
        """Nothing to do: prompts are made up, and no file is open."""


@dataclass(frozen=True, slots=True)
class FirstLetterPrompts:
    """`builtin:first-letter`, for a model with a tokenizer."""

    seed: int
    model: ModelInput
    limit: LengthLimit
    field: str

    def prompt(self, number: int) -> Prompt | None:
        row = first_letter.row(number, seed=self.seed)
        tokens = self.model.text_tokens(row["prompt"])
        kept = self.limit.kept(len(tokens), place=self.place(number), field=self.field)
        if kept is None:
            return None
        return Prompt(tuple(tokens[kept]), dict(row), truncated=len(tokens) > self.limit.tokens)

    def place(self, number: int) -> str:
        return f"builtin:first-letter, number {number}"

    def close(self) -> None:
        """Nothing to do: prompts are made up, and no file is open."""


@dataclass(frozen=True, slots=True)
class TablePrompts:
    """The rows of files and data sets."""

    rows: RowMix[Prompt]

    def prompt(self, number: int) -> Prompt | None:
        return self.rows.item(number)

    def place(self, number: int) -> str:
        return self.rows.place(number)

    def close(self) -> None:
        self.rows.close()


@dataclass(frozen=True, slots=True)
class NoPrompts:
    """`builtin:front`: rollouts get no prompts, since agents bring their own."""

    def prompt(self, number: int) -> Prompt:
        raise LookupError(f"{FRONT} has no prompt {number}: agents bring their own")

    def place(self, number: int) -> str:
        return f"{FRONT}, number {number}"

    def close(self) -> None:
        """Nothing to do: there are no prompts, and no file is open."""


def open_prompts(
    data: DataConfig,
    *,
    model: ModelInput,
    field: str = "",
    sampling: SamplingConfig = _ALL_ALIKE,
    needs: Sequence[RowNeeds] = (),
) -> PromptSource:
    """The prompts of a job. SpecError names file and line, or row, of what is wrong with them.

    `field` is that of a source outside of spec.data; `sampling` names the column of a row's own
    settings, `needs` is what the reward reads of a row.

    All rows are checked, but only the longest are tokenized now.
    """
    first = data.sources[0].name
    if data.from_front:
        return NoPrompts()
    if first == _REVERSE and len(data.sources) == 1:
        _check_row({}, needs, place=first, field=field)
        return ReversePrompts(data.seed)
    limit = length_limit(data, model, response=1)
    if first == _FIRST_LETTER and len(data.sources) == 1:
        made = FirstLetterPrompts(data.seed, model, limit, field or "spec.data.prompts")
        _check_row(first_letter.row(0, seed=0), needs, place=first, field=field)
        made.prompt(0)  # a model without a tokenizer shows before the first step
        return made
    open_reader = partial(
        open_prompt_rows, model=model, limit=limit, sampling=sampling, needs=needs
    )
    return TablePrompts(open_mix(data, open_reader, field=field))


def count_prompts(data: DataConfig) -> int | None:
    """How many prompts a pass over `data` has; None if there is no end. SpecError as `open_rows`.

    None is checked: `open_prompts` does that.
    """
    if data.from_front or (len(data.sources) == 1 and data.sources[0].name in _MADE_UP):
        return None
    return count_rows(data)


def _check_row(
    row: Mapping[str, Any], needs: Sequence[RowNeeds], *, place: str, field: str
) -> None:
    """SpecError if the reward cannot use what all rows of a builtin have."""
    for need in needs:
        try:
            need.check(row)
        except ValueError as error:
            problem = f"{place}: the reward cannot use this row: {error}"
            raise SpecError(field or "spec.data.prompts", problem) from error


def check_prompts(
    data: DataConfig,
    *,
    model: ModelInput,
    sampling: SamplingConfig,
    needs: Sequence[RowNeeds] = (),
) -> DataIdentity:
    """What the numbers of the prompts of a job count. SpecError as `open_prompts`."""
    source = open_prompts(data, model=model, sampling=sampling, needs=needs)
    try:
        return identity_of(data, source.rows.readers if isinstance(source, TablePrompts) else ())
    finally:
        source.close()
