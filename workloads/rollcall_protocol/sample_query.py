"""Which recorded responses are asked for, and how they are chosen among all lines."""

from __future__ import annotations

import heapq
import math
from collections import deque
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Literal, get_args
from urllib.parse import urlencode

from rollcall_protocol.sample_record import LineHead, head_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

ROUTE = "/samples"
"""Where the trainer's first pod gives them, on the port of its metrics."""
MOST_ANSWERED = 256  # responses
MOST_ANSWER = 8 << 20  # bytes
LAST_STEPS = 10
"""Recorded steps among which the best and the worst are looked for, if none is named."""
_MOST_NUMBER = 2**62

Order = Literal["newest", "worst", "best", "spread"]
_ORDERS: dict[str, Order] = {each: each for each in get_args(Order)}


class BadQueryError(ValueError):
    """A part of a query is wrong; the message names it."""


@dataclass(frozen=True, slots=True)
class SampleQuery:
    """At most `limit` responses, of `step` and of `prompt` alone if these are given.

    `order`: the newest, or some that are spread evenly over all, in the order of their steps; or
    those of the least or the greatest reward, this one first. `since`: those that were recorded at
    that time or later, seconds since 1970.
    """

    step: int | None = None
    prompt: int | None = None
    since: float = 0.0
    order: Order = "newest"
    limit: int = 8

    @classmethod
    def of(cls, given: Mapping[str, str]) -> SampleQuery:
        """From an HTTP query; BadQueryError."""
        known = {"step", "prompt", "since", "order", "limit"}
        if not given.keys() <= known:
            name = min(given.keys() - known)
            raise BadQueryError(f"{name:.40} is unknown; known are {', '.join(sorted(known))}")
        order = _ORDERS.get(given.get("order", "newest"))
        if order is None:
            raise BadQueryError(
                f"order is {given['order']:.40}; it must be one of {', '.join(_ORDERS)}"
            )
        return cls(
            step=_whole(given, "step", 0, _MOST_NUMBER) if "step" in given else None,
            prompt=_whole(given, "prompt", 0, _MOST_NUMBER) if "prompt" in given else None,
            since=_seconds(given["since"]) if "since" in given else 0.0,
            order=order,
            limit=_whole(given, "limit", 1, MOST_ANSWERED) if "limit" in given else cls().limit,
        )

    def route(self) -> str:
        """The path to ask, with its query."""
        given: dict[str, object] = {
            "step": self.step,
            "prompt": self.prompt,
            "order": self.order,
            "limit": self.limit,
        }
        if self.since:
            given["since"] = repr(self.since)
        return f"{ROUTE}?{urlencode({name: v for name, v in given.items() if v is not None})}"

    def choose(self, read: Callable[[], Iterable[bytes]]) -> list[bytes]:
        """The lines that are asked for, at most MOST_ANSWER bytes; `read` gives all, in order."""
        first = 0
        if self.order in {"worst", "best"} and self.step is None and self.prompt is None:
            steps = sorted({head.step for head, _ in self._asked(read())})
            first = steps[-LAST_STEPS:][0] if steps else 0
        asked = ((head, line) for head, line in self._asked(read()) if head.step >= first)
        if self.order == "newest":
            return _within_bytes([line for _, line in deque(asked, self.limit)][::-1])[::-1]
        if self.order == "spread":
            apart = max(1, -(-sum(1 for _ in self._asked(read())) // self.limit))
            return _within_bytes([line for _, line in islice(asked, 0, None, apart)])
        nearest = heapq.nsmallest if self.order == "worst" else heapq.nlargest
        found = nearest(self.limit, asked, key=lambda each: each[0].reward)
        return _within_bytes([line for _, line in found])

    def _asked(self, lines: Iterable[bytes]) -> Iterator[tuple[LineHead, bytes]]:
        for line in lines:
            head = head_of(line)
            if head is None or head.time < self.since:
                continue
            if self.step in {None, head.step} and self.prompt in {None, head.prompt}:
                yield head, line


def _within_bytes(lines: list[bytes]) -> list[bytes]:
    total = 0
    for number, line in enumerate(lines):
        total += len(line)
        if total > MOST_ANSWER:
            return lines[:number]
    return lines


def _whole(given: Mapping[str, str], name: str, low: int, high: int) -> int:
    text = given[name]
    if not (text.isascii() and text.isdecimal() and len(text) < 20 and low <= int(text) <= high):
        raise BadQueryError(f"{name} is {text:.40}; it must be from {low} to {high}")
    return int(text)


def _seconds(text: str) -> float:
    try:
        found = float(text[:40])
    except ValueError:
        found = math.nan
    if not 0 <= found < _MOST_NUMBER:
        raise BadQueryError(f"since is {text:.40}; it must be seconds since 1970")
    return found
