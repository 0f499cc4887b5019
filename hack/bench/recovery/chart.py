"""The distribution of each event's trials as one SVG: a dot a trial, marks for median and goals."""

import statistics
from collections.abc import Iterable, Mapping

from matplotlib.figure import Figure

from hack.bench.recovery.markdown_table import GOALS
from hack.bench.recovery.trial_statistics import TrialResult

ROWS: Mapping[str, str] = {
    "kill_idle": "rollout killed, idle",
    "kill_stage": "rollout killed in mid-STAGE",
    "stop_beyond_bound": "rollout stopped, beyond the bound",
    "stall": "longest step, beyond the usual one",
    "scale_up": "2 to 6: four in sync",
    "trainer_kill": "trainer killed: training again",
    "naive_stop": "rollout hangs, naive policy",
}
_LEAST = 0.01  # seconds: what is less is drawn here
_TICKS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
_DOTS, _MEDIAN, _GOAL = "#0072b2", "black", "#d55e00"


def draw(results: Iterable[TrialResult], *, caption: str) -> Figure:
    """The chart; `caption` names the run. ValueError when it has no figures of these events."""
    values = dict[str, list[float]]()
    for result in results:
        if result.event in ROWS and result.seconds is not None:
            values.setdefault(result.event, []).append(max(result.seconds, _LEAST))
    events = [event for event in ROWS if event in values]
    if not events:
        raise ValueError("there are no figures to draw")
    figure = Figure(figsize=(9.4, 1.4 + 0.46 * len(events)), layout="constrained")
    axes = figure.subplots()
    for row, event in enumerate(events):
        seconds = sorted(values[event])
        # Side by side, so that equal ones can be distinguished.
        offsets = [row + (number % 5 - 2) * 0.09 for number in range(len(seconds))]
        axes.scatter(seconds, offsets, s=14, color=_DOTS, alpha=0.45, linewidths=0)
        axes.plot([statistics.median(seconds)] * 2, [row - 0.35, row + 0.35], color=_MEDIAN)
        for goal in GOALS.get(event, ()):
            axes.plot(goal, row + 0.4, marker="^", color=_GOAL, markersize=5)
    axes.set_xscale("log")
    axes.set_xlim(_LEAST * 0.9, _TICKS[-1])
    axes.set_xticks(_TICKS, [f"{tick:g}" for tick in _TICKS])
    axes.minorticks_off()
    axes.set_yticks(range(len(events)), [ROWS[event] for event in events])
    axes.set_ylim(len(events) - 0.4, -0.6)
    axes.grid(axis="x", color="#dddddd")
    axes.set_axisbelow(True)
    axes.set_xlabel(f"seconds\n{caption}", fontsize=8)
    axes.set_title(
        "a dot a trial; bar: median; triangles: goals for median and p99", fontsize=9, loc="left"
    )
    return figure
