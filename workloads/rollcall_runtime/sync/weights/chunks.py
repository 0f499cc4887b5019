"""Ranges of a flat buffer that was written as files of one size."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes of the `chunk`-th file, from `offset` in it."""

    chunk: int
    offset: int
    nbytes: int


def cut_in_chunks(ranges: Sequence[tuple[int, int]], size: int) -> Iterator[Piece]:
    """The bytes of these ranges (first, end; ascending), in pieces of files of `size` bytes.

    Ranges that touch are read together.
    """
    joined: list[tuple[int, int]] = []
    for start, end in ranges:
        touches = joined and joined[-1][1] == start
        joined.append((joined.pop()[0] if touches else start, end))
    for first, end in joined:
        start = first
        while start < end:
            chunk, offset = divmod(start, size)
            nbytes = min(size - offset, end - start)
            yield Piece(chunk, offset, nbytes)
            start += nbytes
