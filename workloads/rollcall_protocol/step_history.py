"""The figures of a job's steps as lines of JSON, which the trainer writes and reports read."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

ROUTE = "/history"
"""Where the trainer's first pod gives them, on the port of its metrics."""
MOST_STEPS = 4096  # some 4 MB
MOST_BYTES = 64 << 20  # of all lines; a job writes far less
_EVALUATION = "eval/"


@dataclass(slots=True)
class StepRow:
    """The figures of one step; `time` in seconds since 1970, when the first ones were known."""

    step: int
    time: float
    figures: dict[str, float] = field(default_factory=dict)

    @property
    def evaluated(self) -> bool:
        """Whether the model was evaluated after this step."""
        return any(name.startswith(_EVALUATION) for name in self.figures)

    def line(self) -> str:
        """JSON with a line's end."""
        return json.dumps({"step": self.step, "time": self.time, "figures": self.figures}) + "\n"


def read_rows(text: str) -> list[StepRow]:
    """One row for each step, in their order; further lines of a step add figures to it.

    Lines that are no row are left out: the last one may be cut off.
    """
    rows: dict[int, StepRow] = {}
    for line in text.splitlines():
        found = _row(line)
        if found is not None:
            rows.setdefault(found.step, found).figures.update(found.figures)
    return [rows[step] for step in sorted(rows)]


def thinned(rows: Sequence[StepRow]) -> list[StepRow]:
    """Every second row, and those of evaluations, unless these alone are more than half."""
    kept = [row for number, row in enumerate(rows) if number % 2 == 0 or row.evaluated]
    return kept if len(kept) <= 3 * len(rows) // 4 else list(rows[::2])


def _row(line: str) -> StepRow | None:
    try:
        value: Any = json.loads(line)
        step, time, figures = value["step"], value["time"], value["figures"]
        numbers = {str(name): float(number) for name, number in figures.items()}
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return None
    if type(step) is not int or step < 0 or not isinstance(time, (int, float)):
        return None
    return StepRow(step, float(time), {n: v for n, v in numbers.items() if math.isfinite(v)})
