"""What trials amount to. Pure: records in, figures out."""

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

USUAL_STEPS = 20  # before a fault: their median is the usual step


@dataclass(frozen=True, slots=True)
class TrialResult:
    """One trial of an event. `seconds` is None when it failed; then `details` has the error."""

    event: str
    seconds: float | None
    details: Mapping[str, Any] = field(default_factory=dict)

    def encode(self) -> dict[str, Any]:
        """As JSON, to a millisecond."""
        return {key: rounded(value) for key, value in asdict(self).items()}


def rounded(value: Any) -> Any:
    """To a millisecond, all the way down."""
    if isinstance(value, Mapping):
        return {key: rounded(item) for key, item in value.items()}
    return round(value, 3) if isinstance(value, float) else value


def percentile(values: Sequence[float], part: float) -> float:
    """The smallest value that at least `part` of all do not exceed (nearest rank).

    ValueError without values.
    """
    if not values:
        raise ValueError("no values")
    return sorted(values)[max(0, math.ceil(part * len(values)) - 1)]


def summary(values: Sequence[float]) -> dict[str, float]:
    """What the bench's last line has for an event."""
    return {
        "n": len(values),
        "median": statistics.median(values),
        "p99": percentile(values, 0.99),
        "worst": max(values),
    }


def summarize(records: Iterable[TrialResult]) -> dict[str, dict[str, float]]:
    """All events by name; `failed` counts the trials that came to no end."""
    good, failed = dict[str, list[float]](), dict[str, int]()
    for record in records:
        if record.seconds is None:
            failed[record.event] = failed.get(record.event, 0) + 1
        else:
            good.setdefault(record.event, []).append(record.seconds)
    found = {event: summary(values) for event, values in good.items()}
    for event, count in failed.items():
        found.setdefault(event, {"n": 0})["failed"] = count
    return {event: rounded(figures) for event, figures in sorted(found.items())}


def breakdown(records: Iterable[TrialResult], event: str) -> dict[str, float]:
    """Medians of the phases that an event's trials measured, in their order."""
    found = dict[str, list[float]]()
    for record in records:
        phases = record.details.get("phases", {}) if record.event == event else {}
        for name, seconds in phases.items():
            found.setdefault(name, []).append(seconds)
    return {name: rounded(statistics.median(values)) for name, values in found.items()}


def kept_up(records: Iterable[TrialResult]) -> float | None:
    """Tokens sampled while newcomers caught up, as a part of the expected number.

    Over all trials of `join_cost` together: one lasts as long as a step or two. None without any.
    """
    measured = [r.details for r in records if r.event == "join_cost" and r.seconds is not None]
    expected = sum(details["before"] * details["seconds"] for details in measured)
    sampled = sum(details["drawn"] for details in measured)
    return rounded(sampled / expected) if expected else None


def phases(marks: Sequence[tuple[str, float | None]]) -> dict[str, float]:
    """Seconds from each mark to the next, by the name of the later one.

    A mark that was not seen is left out.
    """
    seen = [(name, at) for name, at in marks if at is not None]
    return {name: at - before for (_, before), (name, at) in itertools.pairwise(seen)}


def usual_step(ends: Sequence[float], *, before: float) -> float:
    """The median step of the last ones that ended before a time."""
    earlier = [end for end in ends if end <= before][-USUAL_STEPS - 1 :]
    return statistics.median(b - a for a, b in itertools.pairwise(earlier))


def longest_step(ends: Sequence[float], *, since: float, until: float) -> float:
    """The longest step of those under way at some time between two; 0.0 without one."""
    spans = [(b - a) for a, b in itertools.pairwise(ends) if b > since and a < until]
    return max(spans, default=0.0)


def total_at(samples: Sequence[tuple[float, float]], at: float) -> float:
    """A counter's value at a time, between the samples (time, value) around it.

    ValueError when the time is outside of them.
    """
    for (before, low), (after, high) in itertools.pairwise(samples):
        if before <= at <= after:
            return low + (high - low) * (at - before) / (after - before)
    raise ValueError(f"no samples around {at}")


def where(at: float, *, began: float, staged: float) -> str:
    """Which phase of a publication a time falls into."""
    if at < began:
        return "idle"
    return "stage" if at < staged else "commit"
