"""Recorded responses of a job as lines of JSON, which the trainer writes and people read."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

MOST_BYTES = 16 << 20  # of all lines: a trainer's state volume has 64 MiB
MOST_STEP_BYTES = MOST_BYTES // 4
MOST_LINE = 1 << 20  # bytes
MOST_TOKENS = 4096  # of one response
MOST_CHARACTERS = 16384  # of a prompt
_MOST_PARTS = 64
_MOST_WORD = 256  # characters of a name, or of a token
_MOST_NUMBER = 2**63
# What a line is chosen by stands first in it.
_HEAD = re.compile(
    rb'\{"step": (\d{1,15}), "prompt": (\d{1,18}), "sample": (\d{1,9}), '
    rb'"time": (\d{1,12}(?:\.\d{1,9})?), "reward": (-?\d{1,7}(?:\.\d{1,30})?(?:e-?\d{1,3})?), '
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRecord:
    """One response that a step trained on.

    Attributes:
        step: the optimizer step.
        prompt: number of the prompt, the same for all responses of its group.
        sample: number of the response in its group.
        time: when the step was recorded, in seconds since 1970.
        reward: what the response got.
        group_size: number of responses to the prompt.
        group_mean: their mean reward.
        parts: number of each part of the reward, without weights; empty if it has none.
        prompt_text: the prompt with special tokens; its middle is left out if it is long.
        tokens: text of each token, in their order. Together they are the response.
        left_out: how many tokens are missing in the middle of `tokens`.
        advantages: runs of (advantage, number of tokens); empty if none is known.
        mismatch: of each token the natural logarithm of the trainer's probability over the
            rollout's; None where the trainer computed none. Empty if it computed none at all.
        versions: runs of (weight version, number of tokens); -1: an environment gave them.
        trained_version: the weight version that the step trained.
        ended: why the response ended.
        seconds: how long the rollout took that finished it.
    """

    step: int
    prompt: int
    sample: int
    time: float
    reward: float
    group_size: int
    group_mean: float
    parts: Mapping[str, float]
    prompt_text: str
    tokens: tuple[str, ...]
    left_out: int
    advantages: tuple[tuple[float, int], ...]
    mismatch: tuple[float | None, ...]
    versions: tuple[tuple[int, int], ...]
    trained_version: int
    ended: str
    seconds: float

    @property
    def response(self) -> str:
        """The whole text."""
        return "".join(self.tokens)

    def line(self) -> bytes:
        """ASCII JSON with a line's end."""
        return json.dumps({name: getattr(self, name) for name in _READ}).encode() + b"\n"


@dataclass(frozen=True, slots=True)
class LineHead:
    """What a line is chosen by."""

    step: int
    prompt: int
    sample: int
    time: float
    reward: float


def head_of(line: bytes) -> LineHead | None:
    """The head of a whole line; None for one that is cut off, too long, or no record."""
    found = _HEAD.match(line) if line.endswith(b"}\n") and len(line) <= MOST_LINE else None
    if found is None:
        return None
    step, prompt, sample, time, reward = found.groups()
    return LineHead(int(step), int(prompt), int(sample), float(time), float(reward))


def runs(values: Iterable[Any]) -> tuple[tuple[Any, int], ...]:
    """(value, how often) for values that follow each other."""
    found: list[tuple[Any, int]] = []
    for value in values:
        if found and found[-1][0] == value:
            found[-1] = value, found[-1][1] + 1
        else:
            found.append((value, 1))
    return tuple(found)


def expanded(found: Sequence[tuple[Any, int]]) -> list[Any]:
    """The values that `runs` was given."""
    return [value for value, count in found for _ in range(count)]


def read_records(content: bytes) -> list[SampleRecord]:
    """A record for each line that is one; the last line may be cut off."""
    lines = content.split(b"\n")
    found = (_record(line) for line in lines if len(line) <= MOST_LINE)
    return [record for record in found if record is not None]


def thinned(sizes: Mapping[int, int], *, most: int) -> list[int]:
    """Steps to keep, of those whose bytes these are, so that at most `most` bytes remain.

    Every second step goes, again and again. The first and the newest are kept as long as they fit,
    and the newest in any case.
    """
    steps = sorted(sizes)
    while sum(sizes[step] for step in steps) > most and len(steps) > 1:
        older, newest = steps[:-1], steps[-1]
        steps = [*older[::2], newest] if len(older) > 1 else [newest]
    return steps


def _record(line: bytes) -> SampleRecord | None:
    try:
        value: Any = json.loads(line)
        record = SampleRecord(**{name: read(value[name]) for name, read in _READ.items()})
        return record if _fits(record) else None
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return None


def _fits(record: SampleRecord) -> bool:
    """Whether what is said of tokens is said of each, or of none."""
    count = len(record.tokens)
    counts = (_total(record.advantages), len(record.mismatch), _total(record.versions))
    return count <= MOST_TOKENS and all(found in {0, count} for found in counts)


def _total(found: Sequence[tuple[Any, int]]) -> int:
    return sum(count for _, count in found)


def _integer(value: Any) -> int:
    if type(value) is not int or not -1 <= value < _MOST_NUMBER:
        raise ValueError("no whole number")
    return value


def _number(value: Any) -> float:
    if type(value) not in {int, float} or not math.isfinite(value):
        raise ValueError("no number")
    return float(value)


def _text(value: Any, most: int = _MOST_WORD) -> str:
    if type(value) is not str or len(value) > most:
        raise ValueError("no text")
    return value


def _parts(value: Any) -> dict[str, float]:
    if len(value) > _MOST_PARTS:
        raise ValueError("too many parts")
    return {_text(name): _number(number) for name, number in value.items()}


def _runs(value: Any, read: Any) -> tuple[tuple[Any, int], ...]:
    found = tuple((read(each), _integer(count)) for each, count in _at_most(value))
    if any(count < 1 for _, count in found):
        raise ValueError("a run of nothing")
    return found


def _at_most(value: Any) -> list[Any]:
    if type(value) is not list or len(value) > MOST_TOKENS:
        raise ValueError("no list")
    return value


_READ: dict[str, Any] = {
    "step": _integer,
    "prompt": _integer,
    "sample": _integer,
    "time": _number,
    "reward": _number,
    "group_size": _integer,
    "group_mean": _number,
    "parts": _parts,
    "prompt_text": lambda value: _text(value, 2 * MOST_CHARACTERS),
    "tokens": lambda value: tuple(_text(each) for each in _at_most(value)),
    "left_out": _integer,
    "advantages": lambda value: _runs(value, _number),
    "mismatch": lambda value: tuple(
        None if each is None else _number(each) for each in _at_most(value)
    ),
    "versions": lambda value: _runs(value, _integer),
    "trained_version": _integer,
    "ended": _text,
    "seconds": _number,
}
