"""Recorded responses for a terminal, with colours by token."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Literal

from rich.console import Group
from rich.table import Column, Table
from rich.text import Text

from rollcall_cli.visible_text import visible
from rollcall_protocol.sample_record import expanded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from rollcall_protocol.sample_record import SampleRecord

Colour = Literal["advantage", "mismatch"]
LEGENDS: dict[Colour, str] = {
    "advantage": "Colours: the token's advantage, green above 0 and red below; bold from 1 on.",
    "mismatch": "Colours: how far trainer and rollout are apart in the token's log-probability, "
    "yellow from 0.05 on, red from 0.5 on.",
}
_NOT_SAMPLED = -1
_DIM, _PLAIN = "dim", ""


def samples_screen(records: Sequence[SampleRecord], *, colour: Colour) -> RenderableType:
    """One below the other."""
    if not records:
        return Text(
            "No such response is recorded. spec.observe.samples says which ones the trainer keeps."
        )
    return Group(*(_one(record, colour) for record in records))


def _one(record: SampleRecord, colour: Colour) -> RenderableType:
    texts = Table.grid(Column(no_wrap=True), Column(overflow="fold"), padding=(0, 1))
    texts.add_row(Text("prompt", style=_DIM), Text(visible(record.prompt_text)))
    texts.add_row(Text("response", style=_DIM), _response(record, colour))
    return Group(Text(headline(record), style="bold"), *map(Text, facts(record)), texts, "")


def headline(record: SampleRecord) -> str:
    """Which response it is, and its reward."""
    return (
        f"step {record.step}, prompt {record.prompt}, response {record.sample + 1} of "
        f"{record.group_size}: reward {record.reward:.4g}, group's mean {record.group_mean:.4g}"
    )


def facts(record: SampleRecord) -> list[str]:
    """Lines about how it was made and judged; what is not the project's own text is visible."""
    count = sum(number for _, number in record.versions) + record.left_out
    versions = ", ".join(
        f"{'environment' if version == _NOT_SAMPLED else version} x{number}"
        for version, number in record.versions
    )
    advantages = sorted({value for value, _ in record.advantages})
    said = [
        f"ended by {visible(record.ended)} after {count} tokens and {record.seconds:.3g} s",
        f"weight versions {versions or 'none'}; trained {record.trained_version}",
    ]
    if advantages:
        low, high = advantages[0], advantages[-1]
        said.append(f"advantage {low:.4g}" + (f" to {high:.4g}" if high > low else ""))
    facts = ["; ".join(said)]
    if record.parts:
        parts = (f"{visible(name)} {value:.4g}" for name, value in record.parts.items())
        facts.append(f"reward by part: {', '.join(parts)}")
    return facts


def _response(record: SampleRecord, colour: Colour) -> Text:
    styles, tokens = _styles(record, colour), record.tokens
    middle = len(tokens) // 2 if record.left_out else len(tokens)
    text = Text()
    for begin, end in ((0, middle), (middle, len(tokens))):
        if begin and begin < end:
            text.append(f" [{record.left_out} tokens left out] ", style=_DIM)
        # Styles are of tokens, so that text between two of one style is one piece.
        pairs = zip(styles[begin:end], tokens[begin:end], strict=True)
        for style, pieces in groupby(pairs, key=lambda pair: pair[0]):
            text.append(visible("".join(piece for _, piece in pieces)), style=style)
    return text


def _styles(record: SampleRecord, colour: Colour) -> list[str]:
    count = len(record.tokens)
    versions = expanded(record.versions) or [0] * count
    values: Sequence[float | None]
    if colour == "advantage":
        values, style = expanded(record.advantages), _advantage_style
    else:
        values, style = record.mismatch, _mismatch_style
    return [
        _DIM if version == _NOT_SAMPLED or value is None else style(value)
        for version, value in zip(versions, values or [0.0] * count, strict=True)
    ]


def _advantage_style(value: float) -> str:
    if value == 0:
        return _PLAIN
    return ("bold " if abs(value) >= 1 else "") + ("green" if value > 0 else "red")


def _mismatch_style(value: float) -> str:
    if abs(value) < 0.05:
        return _PLAIN
    return "yellow" if abs(value) < 0.5 else "bold red"
