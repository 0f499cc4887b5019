"""What a setting may be, declared beside it: `Annotated[float, Range(0, 1)] = 0.5`."""

from dataclasses import dataclass
from functools import cache
from math import inf
from typing import Any, get_args, get_type_hints

from rollcall_protocol.settings_reader import camel_case


@dataclass(frozen=True, slots=True)
class Range:
    """A number from `low` to `high`."""

    low: float
    high: float = inf

    def problem(self, value: Any) -> str:
        """What `value` must be; empty if it is. No NaN is in a range."""
        if self.low <= value <= self.high:
            return ""
        if self.high == inf:
            return f"must be at least {self.low}"
        return f"must be between {self.low} and {self.high}"


class OneOf:
    """A text out of `values`."""

    def __init__(self, *values: str) -> None:
        self.values = values

    def problem(self, value: Any) -> str:
        """What `value` must be; empty if it is."""
        return "" if value in self.values else f"must be one of {', '.join(self.values)}"


AT_LEAST_0, AT_LEAST_1 = Range(0), Range(1)


def check_ranges(settings: Any) -> None:
    """ValueError names the first field outside of its Range or OneOf as a manifest names it."""
    for name, allowed in _allowed(type(settings)).items():  # type: ignore[arg-type]
        if problem := allowed.problem(getattr(settings, name)):
            raise ValueError(f"{camel_case(name)} {problem}")


@cache
def _allowed(cls: type[Any]) -> dict[str, Range | OneOf]:
    found = {}
    for name, kind in get_type_hints(cls, include_extras=True).items():
        for allowed in get_args(kind):
            if isinstance(allowed, (Range, OneOf)):
                found[name] = allowed
    return found
