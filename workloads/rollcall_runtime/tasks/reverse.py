"""Reverse five symbols: a task with a verifiable reward that a tiny model learns in seconds.

A prompt is BOS, five symbols, SEP; the right response is the symbols backwards, then EOS.
"""

import hashlib
from collections.abc import Sequence

BOS, SEP, EOS = 0, 1, 2
FIRST_SYMBOL = 3
SYMBOLS = 10
VOCABULARY = FIRST_SYMBOL + SYMBOLS
LENGTH = 5
PROMPT_TOKENS = LENGTH + 2
RESPONSE_TOKENS = LENGTH + 1


def prompt(index: int, *, seed: int) -> tuple[int, ...]:
    """Prompt `index` of the endless sequence `seed`: always the same tokens, without any state."""
    digest = hashlib.blake2b(f"{seed}/{index}".encode(), digest_size=8 * LENGTH).digest()
    symbols = (
        int.from_bytes(digest[at : at + 8], "big") % SYMBOLS for at in range(0, len(digest), 8)
    )
    return (BOS, *(FIRST_SYMBOL + symbol for symbol in symbols), SEP)


def answer(prompt: Sequence[int]) -> tuple[int, ...]:
    """The right response to a prompt of any length."""
    return (*reversed(prompt[1:-1]), EOS)


def reward(prompt: Sequence[int], response: Sequence[int]) -> float:
    """The fraction of the answer's positions that are right; missing ones count as wrong."""
    expected = answer(prompt)
    right = sum(got == want for got, want in zip(response, expected, strict=False))
    return right / len(expected)
