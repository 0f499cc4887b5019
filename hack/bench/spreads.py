"""Numbers of several trials: their median, the least and the most, in three digits."""

import statistics
from collections.abc import Mapping, Sequence


def spread(values: Sequence[float]) -> dict[str, float]:
    """Of one figure; `values` are not empty."""
    ends = {"median": statistics.median(values), "min": min(values), "max": max(values)}
    return {name: float(f"{value:.3g}") for name, value in ends.items()}


def spreads(trials: Sequence[Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Of each figure of trials, all of which have the same."""
    return {name: spread([trial[name] for trial in trials]) for name in trials[0]}
