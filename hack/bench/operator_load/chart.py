"""All figures beside their goals as one SVG.

    python -m hack.bench.operator_load.chart FIGURES.jsonl CHART.svg

Each line of the input is what one run of the bench printed; of a scenario that several have, the
last counts.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure

from hack.bench.run_record import caption
from hack.svg_file import save

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

GOALS: Mapping[tuple[str, str], tuple[float, str]] = {
    ("jobs500x2", "ratio_to_bare"): (1.3, "500 jobs of 2 pods: time, bare client = 1"),
    ("jobs500x2", "cpu_ms_per_job"): (12.0, "500 jobs of 2 pods: CPU of a job, ms"),
    ("jobs500x2", "writes_per_job"): (10.0, "500 jobs of 2 pods: writes of a job"),
    ("jobs500x2", "reads_per_job"): (0.2, "500 jobs of 2 pods: reads of a job"),
    ("jobs50x10", "ratio_to_bare"): (1.0, "50 jobs of 10 pods: time, bare client = 1"),
    ("idle500", "cpu_share"): (0.01, "500 idle jobs: CPU, cores"),
    ("idle500", "silent_cpu_share"): (0.03, "500 silent coordinators: CPU, cores"),
    ("training500", "cpu_share"): (0.2, "500 jobs, a step a second: CPU, cores"),
    ("training500", "reads_per_second"): (1.0, "500 jobs, a step a second: reads a second"),
    ("pods10000", "peak_mib"): (350.0, "10,000 pods: most memory, MiB"),
    ("pods10000", "restart_seconds"): (60.0, "10,000 pods: restart, s"),
    ("storm", "p99_seconds"): (1.0, "a storm of pod events: p99 of other jobs, s"),
    ("hostile500", "reconcile_p99_seconds"): (1.0, "5 of 500 jobs hostile: p99 of others, s"),
    ("hostile500", "memory_ratio"): (1.25, "5 of 500 jobs hostile: memory, without = 1"),
}
"""The goal of each figure, and what it is."""

_LEAST, _MOST = 0.05, 20.0  # times the goal; what is beyond is drawn at the edge
_TICKS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_MET, _MISSED = "#0072b2", "#d55e00"


def merged(runs: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The figures of each scenario by its name; those of a later run replace earlier ones."""
    return {name: figures for run in runs for name, figures in run.items() if name != "run"}


def draw(figures: Mapping[str, Any], *, caption: str) -> Figure:
    """The chart; `caption` names the runs. ValueError when no figure has a goal."""
    rows = [
        (text, float(figures[scenario][name]), goal)
        for (scenario, name), (goal, text) in GOALS.items()
        if name in figures.get(scenario, {})
    ]
    if not rows:
        raise ValueError("there are no figures to draw")
    figure = Figure(figsize=(9.4, 1.6 + 0.36 * len(rows)), layout="constrained")
    axes = figure.subplots()
    for row, (_, value, goal) in enumerate(rows):
        times = min(max(value / goal, _LEAST), _MOST)
        color = _MET if value <= goal else _MISSED
        axes.barh(row, times - _LEAST, left=_LEAST, height=0.55, color=color)
        axes.text(times * 1.05, row, f"{value:g} (goal {goal:g})", va="center", fontsize=8)
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_xlim(_LEAST, _MOST * 4)
    axes.set_xticks(_TICKS, [f"{tick:g}" for tick in _TICKS])
    axes.minorticks_off()
    axes.set_yticks(range(len(rows)), [text for text, _, _ in rows], fontsize=8)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.grid(axis="x", color="#dddddd")
    axes.set_axisbelow(True)
    axes.set_xlabel(f"times the goal (less is better)\n{caption}", fontsize=8)
    return figure


def main() -> None:
    """Draw the chart of results that were kept."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("figures", type=Path)
    parser.add_argument("chart", type=Path)
    options = parser.parse_args()
    runs = [json.loads(line) for line in options.figures.read_text().splitlines()]
    text = "\n".join(dict.fromkeys(caption(each["run"]) for each in runs))
    save(draw(merged(runs), caption=text), options.chart)


if __name__ == "__main__":
    main()
