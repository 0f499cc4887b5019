"""Recorded responses for the report: texts to search, with colours by advantage."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from hashlib import sha256
from itertools import groupby
from typing import TYPE_CHECKING

from rollcall_cli.sample_screen import facts, headline
from rollcall_cli.visible_text import visible
from rollcall_protocol.sample_record import expanded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollcall_protocol.sample_record import SampleRecord

SCRIPT = """
const search = document.getElementById("search");
const found = document.getElementById("found");
const samples = [...document.querySelectorAll("details.sample")];
const texts = samples.map(each => each.textContent.toLowerCase());
const filter = () => {
  const words = search.value.toLowerCase().split(/\\s+/).filter(Boolean);
  let shown = 0;
  samples.forEach((each, at) => {
    each.hidden = !words.every(word => texts[at].includes(word));
    shown += !each.hidden;
  });
  found.textContent = `${shown} of ${samples.length}`;
};
search.addEventListener("input", filter);
filter();
"""


def script_hash() -> str:
    """SCRIPT for a Content-Security-Policy."""
    return f"sha256-{base64.b64encode(sha256(SCRIPT.encode()).digest()).decode()}"


@dataclass(frozen=True, slots=True)
class ShownSample:
    """Texts to be escaped; `pieces` are (class of the page's style, text)."""

    headline: str
    facts: Sequence[str]
    prompt: str
    pieces: Sequence[tuple[str, str]]


def shown(record: SampleRecord) -> ShownSample:
    """What the page has of one response."""
    advantages = expanded(record.advantages) or [0.0] * len(record.tokens)
    pairs = zip(map(_style, advantages), record.tokens, strict=True)
    pieces = [
        (style, visible("".join(token for _, token in tokens)))
        for style, tokens in groupby(pairs, key=lambda pair: pair[0])
    ]
    return ShownSample(headline(record), facts(record), visible(record.prompt_text), pieces)


def _style(advantage: float) -> str:
    if advantage == 0:
        return "plain"
    return "above" if advantage > 0 else "below"
