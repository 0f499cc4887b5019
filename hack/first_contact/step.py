"""What a step is: a program that prints one line of JSON, its figures, or why it has none."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

Figures = dict[str, Any]
SKIPPED = "skipped"  # the only key of what a step prints that cannot be made here


class SkipStepError(Exception):
    """The machine lacks what the step needs; the message says what."""


def run(step: Callable[[str], Figures]) -> None:
    """For a step's `__main__`: its argument is a torch device type, or cpu for doubles."""
    (device,) = sys.argv[1:]
    try:
        found = step(device)
    except SkipStepError as error:
        found = {SKIPPED: str(error)}
    print(json.dumps(found), flush=True)
