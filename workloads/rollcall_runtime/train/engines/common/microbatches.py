"""Cuts rows into micro-batches that a forward pass can hold."""

from collections.abc import Sequence


def cut_into_microbatches(
    lengths: Sequence[int], *, max_tokens: int, packing: bool
) -> list[list[int]]:
    """Which rows are computed together; each row is in one micro-batch, and none is empty.

    A micro-batch has at most `max_tokens` positions (0: any number), padding included unless rows
    are packed; a row that is longer than that is alone. The rows of a micro-batch are in their
    order. Deterministic.
    """
    rows = sorted(range(len(lengths)), key=lambda row: (-lengths[row], row))
    if not max_tokens:
        return [sorted(rows)] if rows else []
    cut = _first_fit(rows, lengths, max_tokens) if packing else _alike(rows, lengths, max_tokens)
    return [sorted(part) for part in cut]


def _first_fit(rows: list[int], lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """First fit, longest first: at most 11/9 of the fewest bins, and one more (Johnson 1973)."""
    parts: list[list[int]] = []
    left: list[int] = []
    for row in rows:
        fits = (part for part, room in enumerate(left) if room >= lengths[row])
        part = next(fits, len(parts))
        if part == len(parts):
            parts.append([])
            left.append(max_tokens)
        parts[part].append(row)
        left[part] -= lengths[row]
    return parts


def _alike(rows: list[int], lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Rows of like length together, as each is padded to the longest: the first of its part."""
    parts: list[list[int]] = []
    for row in rows:
        if parts and lengths[parts[-1][0]] * (len(parts[-1]) + 1) <= max_tokens:
            parts[-1].append(row)
        else:
            parts.append([row])
    return parts
