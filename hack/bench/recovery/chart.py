"""The distribution of each event's trials, as an SVG and as a Markdown table with the goals."""

import statistics
from collections.abc import Iterable, Mapping

from matplotlib.figure import Figure

from hack.bench.recovery.trial_statistics import TrialResult, breakdown, kept_up, summarize

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
# What is aimed at: median and 99th percentile, seconds.
GOALS: Mapping[str, tuple[float, float]] = {
    "kill_idle": (0.3, 1.0),
    "kill_stage": (0.3, 1.0),
    "stop_beyond_bound": (0.5, 1.0),
    "stall": (0.3, 1.0),
    "stall_kill": (0.3, 1.0),
    "stall_stop": (0.3, 1.0),
    "scale_up": (3.0, 6.0),
    "trainer_kill": (5.0, 10.0),
    "trainer_killed_again": (5.0, 5.0),
}
TITLES: Mapping[str, str] = {
    "kill_idle": "rollout killed, idle: survivors' session",
    "kill_idle_next_version": "the same: the next version serves",
    "kill_stage": "rollout killed in mid-STAGE: session, weights resent",
    "kill_stage_serves": "the same: all survivors serve them",
    "kill_commit": "rollout killed in mid-COMMIT",
    "stop": "rollout stopped: left out",
    "stop_beyond_bound": "the same, beyond `suspectAfterMilliseconds`",
    "stall": "longest step around any of these, beyond the usual one",
    "stall_kill": "of these, kills",
    "stall_stop": "of these, stops",
    "scale_up": "2 to 6: all in sync after the last container's start",
    "scale_up_in_all": "the same, after `kubectl scale`",
    "scale_up_limit": "beside the same job: four bare imports of PyTorch",
    "trainer_kill": "trainer killed: a step done after its container's start",
    "trainer_kill_in_all": "the same, after the kill",
    "trainer_killed_again": "killed again in the same pod: a container started, after the kill",
    "join_cost": "four newcomers, processes up: catching up and joining",
    "naive_stop": "rollout hangs, naive policy: a step done",
}
PHASES = ("kill_idle", "kill_stage", "scale_up", "trainer_kill")


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


def table(records: Iterable[TrialResult]) -> str:
    """A row for each event that has figures, then the phases and the newcomers' cost."""
    records = list(records)
    lines = [
        "| event, to | trials | median | p99 | worst | goal: median, p99 |",
        "|---|---|---|---|---|---|",
    ]
    found = summarize(records)
    for event, title in TITLES.items():
        figures = found.get(event, {})
        if "median" not in figures:
            continue
        goal = ", ".join(f"{seconds:g}" for seconds in GOALS.get(event, ()))
        failed = f" ({figures['failed']:g} failed)" if "failed" in figures else ""
        seconds = " | ".join(f"{figures[key]:.2f}" for key in ("median", "p99", "worst"))
        lines.append(f"| {title} | {figures['n']:g}{failed} | {seconds} | {goal} |")
    for event in PHASES:
        spent = ", ".join(f"{k} {v:.2f}" for k, v in breakdown(records, event).items())
        if spent:
            lines.append(f"\n`{event}`, medians of its phases: {spent}")
    kept = kept_up(records)
    if kept is not None:
        lines.append(f"\n`join_cost`: the others kept {kept:.0%} of their token rate meanwhile")
    return "\n".join(lines).strip()
