"""The first rows of a job's data as its model will see them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from rollcall_protocol.sampling_config import SamplingConfig
from rollcall_runtime.data.prompt_source import open_prompts
from rollcall_runtime.data.supervised_rows import open_supervised
from rollcall_runtime.worker.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollcall_protocol.data_config import DataConfig
    from rollcall_runtime.data.model_input import ModelInput
    from rollcall_runtime.tasks.row_needs import RowNeeds


@dataclass(frozen=True, slots=True)
class PreviewedRow:
    """Row `number` in the order of training. `outcome`: used, truncated, or left out.

    `text` is None for a model without a tokenizer; `learnt` are the texts that supervised training
    learns, or their tokens.
    """

    number: int
    place: str
    outcome: str
    tokens: Sequence[int] = ()
    text: str | None = None
    learnt: Sequence[str] | None = None
    row: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """With the number of tokens."""
        return {**asdict(self), "length": len(self.tokens)}


def preview_prompts(
    data: DataConfig,
    model: ModelInput,
    *,
    count: int,
    sampling: SamplingConfig | None = None,
    needs: Sequence[RowNeeds] = (),
) -> list[PreviewedRow]:
    """The first `count` prompts. SpecError as `open_prompts`."""
    source = open_prompts(data, model=model, sampling=sampling or SamplingConfig(), needs=needs)
    try:
        rows = []
        for number in range(count):
            prompt, place = source.prompt(number), source.place(number)
            if prompt is None:
                rows.append(PreviewedRow(number, place, "left out"))
                continue
            outcome = "truncated" if prompt.truncated else "used"
            text = _text(model, prompt.tokens)
            rows.append(PreviewedRow(number, place, outcome, prompt.tokens, text, row=prompt.row))
        return rows
    finally:
        source.close()


def preview_supervised(data: DataConfig, model: ModelInput, *, count: int) -> list[PreviewedRow]:
    """The first `count` rows. SpecError as `open_supervised`."""
    mix = open_supervised(data, model=model)
    try:
        rows = []
        for number in range(count):
            found, place = mix.item(number), mix.place(number)
            if found is None:
                rows.append(PreviewedRow(number, place, "left out"))
                continue
            outcome = "truncated" if found.truncated else "used"
            runs = [_text(model, run) or str(run) for run in _runs(found.tokens, found.learnt)]
            text = _text(model, found.tokens)
            rows.append(PreviewedRow(number, place, outcome, found.tokens, text, runs))
        return rows
    finally:
        mix.close()


def as_text(row: PreviewedRow) -> str:
    """Some lines for a person."""
    lines = [f"{row.number}: {row.place}: {row.outcome}, {len(row.tokens)} tokens"]
    if row.text is not None:
        lines += [f"  | {line}" for line in row.text.split("\n")]
    if row.tokens:
        lines.append(f"  tokens: {' '.join(map(str, row.tokens))}")
    lines += [f"  learnt: {run!r}" for run in row.learnt or ()]
    if row.row:
        lines.append(f"  row: {row.row}")
    return "\n".join(lines)


def _text(model: ModelInput, tokens: Sequence[int]) -> str | None:
    try:
        tokenizer = model.tokenizer
    except SpecError:  # rows of tokens are shown without one, too
        return None
    return tokenizer.decode(tokens, special=True)


def _runs(tokens: Sequence[int], learnt: Sequence[bool]) -> list[list[int]]:
    runs: list[list[int]] = []
    for position, (token, mark) in enumerate(zip(tokens, learnt, strict=True)):
        if mark and (position == 0 or not learnt[position - 1]):
            runs.append([])
        if mark:
            runs[-1].append(token)
    return runs
