"""Which characters of a text its tokens stand for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def token_places(offsets: Iterable[tuple[int, int]]) -> tuple[list[int], list[int]]:
    """Where each token's characters start, and where they end, by a tokenizer's `offsets`.

    Some tokenizers leave the spaces out at which a token starts or ends (ByteLevel with
    `trim_offsets`, https://huggingface.co/docs/tokenizers/api/post-processors). A token of spaces
    alone then has no character: here it has those that follow the token before it.
    """
    starts, ends = list[int](), list[int]()
    for start, end in offsets:
        before = ends[-1] if ends else 0
        starts.append(min(before, start) if start == end else start)
        ends.append(end)
    return starts, ends
