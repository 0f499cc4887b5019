"""How much of a card vLLM may take: an update needs room for a second set of weights beside it.

vLLM takes a share of the card (`--gpu-memory-utilization`) for weights, activations, graphs and its
cache, and by default leaves less than a set of weights. Where versions are received on the card
(`weightSync.staging: Device`), those are more sets. Never run on an accelerator.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

SETTING = "gpuMemoryUtilization"
MOST = 0.92
"""vLLM's own default."""
SPARE = 3 << 29
"""Bytes beside vLLM and the other sets: contexts, a transport's buffers, a layer while packed."""
LEAST_CACHE = 1 << 30  # bytes for activations, graphs and the cache of keys and values


class NoRoomError(ValueError):
    """The card cannot hold what is asked; the message has the numbers and the setting."""


def weight_bytes(shapes: Iterable[tuple[int, ...]], *, dtype: str, ranks: int) -> int:
    """Of one rank, in the dtype that vLLM serves: `auto` never has four bytes."""
    itemsize = 4 if dtype in {"float32", "float"} else 2
    return sum(math.prod(shape) for shape in shapes) * itemsize // ranks


def utilization(card: int, weights: int, *, beside: int, wanted: float) -> float:
    """The share of a card of so many bytes that leaves room for the weights `beside` times.

    `wanted` is the user's, or 0. NoRoomError.
    """
    room = card - beside * weights - SPARE
    if room < weights + LEAST_CACHE:
        host = ", or set weightSync.staging to Host" if beside > 1 else ""
        raise NoRoomError(
            f"an update needs {1 + beside} sets of the weights: {1 + beside} x {_gib(weights)} and "
            f"some {_gib(SPARE + LEAST_CACHE)} more do not fit into a card of {_gib(card)}; "
            f"raise tensorParallelSize, or ask for larger cards{host}"
        )
    most = math.floor(room / card * 100) / 100
    if wanted > most:
        raise NoRoomError(
            f"{SETTING} {wanted:g} of {_gib(card)} leaves no room for what an update needs "
            f"beside vLLM, {beside} x {_gib(weights)}; make it {most:g} at most, or leave it out"
        )
    return wanted or min(MOST, most)


def too_full(weights: int) -> str:
    """What to do when an update found no room."""
    return f"an update takes {_gib(weights)} of the card beside vLLM: lower {SETTING}"


def _gib(count: int) -> str:
    return f"{count / (1 << 30):.1f} GiB"
