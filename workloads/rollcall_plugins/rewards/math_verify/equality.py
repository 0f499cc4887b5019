"""Whether texts are equal as mathematics, by Math-Verify; a BoundedWorker calls this."""

import logging
from functools import lru_cache
from typing import Any

import math_verify

logging.getLogger("math_verify").setLevel(logging.ERROR)  # of limits that are not set


def is_mathematics(answer: str) -> bool:
    """Whether the answer of a row can be read."""
    return bool(_parsed(answer))


def equal(answer: str, response: str, digits: int) -> bool:
    """Whether the last boxed text, LaTeX or number of the response is the answer."""
    found = math_verify.parse(response, parsing_timeout=None)
    verify = math_verify.verify
    return bool(verify(_parsed(answer), found, float_rounding=digits, timeout_seconds=None))


@lru_cache(1)  # a group has one answer
def _parsed(answer: str) -> list[Any]:
    # LaTeX is recognised between signs only, a number also without.
    parse = math_verify.parse
    found: list[Any] = parse(answer, parsing_timeout=None)
    return found or parse(f"${answer}$", parsing_timeout=None)
