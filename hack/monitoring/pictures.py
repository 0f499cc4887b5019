"""Draws every dashboard with what a Prometheus stored of a run.

The run is that of the tests (`tests/apiserver/monitored_job.py`): a job of real workers, and
faults. One SVG a dashboard, with a panel where Grafana would have it.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import re
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from hack.monitoring.dashboards.__main__ import DASHBOARDS, ROOT
from hack.monitoring.dashboards.panels import PANELS_IN_A_ROW
from hack.svg_file import save
from tests.apiserver.cluster import running_cluster
from tests.apiserver.monitored_job import Recording, record

if TYPE_CHECKING:
    from collections.abc import Iterable

    from matplotlib.axes import Axes

    from hack.monitoring.dashboard_queries import PanelQuery
    from hack.monitoring.prometheus_server import Line

FOLDER = ROOT / "docs" / "measurements"
EVERY = 2  # points between two that are drawn
LARGE = 10_000  # numbers from which on an axis is in thousands, millions, ...
MOST_NAMES = 8  # in a legend
_FAULT, _CALM = "#d55e00", "#e8f4ea"


def draw(name: str, recording: Recording) -> Figure:
    """One dashboard. ValueError if the recording has no query of it."""
    panels: dict[str, list[PanelQuery]] = {}
    for query in recording.queries:
        if query.dashboard == name:
            panels.setdefault(query.panel, []).append(query)
    if not panels:
        raise ValueError(f"no query of dashboard {name} was recorded")
    rows = -(-len(panels) // PANELS_IN_A_ROW)
    figure = Figure(figsize=(15, 2.7 * rows + 0.8), layout="constrained")
    places = figure.subplots(rows, PANELS_IN_A_ROW, squeeze=False).flat
    for axes in list(places)[len(panels) :]:
        axes.set_axis_off()
    for axes, (title, queries) in zip(figure.axes, panels.items(), strict=False):
        _panel(axes, title, queries, recording)
    figure.suptitle(_caption(name, recording), fontsize=8, ha="left", x=0.01)
    return figure


def _panel(axes: Axes, title: str, queries: Iterable[PanelQuery], recording: Recording) -> None:
    axes.set_title(title, fontsize=9, loc="left")
    axes.axvspan(
        recording.calm - recording.began,
        recording.faults[0].began - recording.began,
        color=_CALM,
        linewidth=0,
    )
    for number, fault in enumerate(recording.faults, start=1):
        at = fault.began - recording.began
        axes.axvline(at, color=_FAULT, linewidth=0.6, alpha=0.6)
        axes.annotate(
            str(number), (at, 1.0), xycoords=("data", "axes fraction"), fontsize=6, color=_FAULT
        )
    for query in queries:
        for line in recording.lines[query.name]:
            times, values = _segments(line, recording.began)
            axes.plot(times, values, linewidth=1.0, label=_name(query.legend, line))
    axes.set_xlim(0, recording.ended - recording.began)
    axes.margins(y=0.12)
    axes.tick_params(labelsize=7)
    if axes.get_ylim()[1] >= LARGE:
        axes.yaxis.set_major_formatter(EngFormatter(sep=""))
    axes.grid(color="#eeeeee")
    handles, names = axes.get_legend_handles_labels()
    if names:
        axes.legend(
            handles[:MOST_NAMES], names[:MOST_NAMES], fontsize=5.5, loc="upper left", framealpha=0.6
        )


def _segments(line: Line, began: float) -> tuple[list[float], list[float]]:
    """The points, with a gap where Prometheus has no sample."""
    times: list[float] = []
    values: list[float] = []
    last = -math.inf
    for at, value in line.points[::EVERY]:
        if times and at - last > 2 * EVERY:
            times.append(at - began)
            values.append(math.nan)
        times.append(at - began)
        values.append(value)
        last = at
    return times, values


def _name(legend: str, line: Line) -> str:
    for label, value in line.labels.items():
        legend = legend.replace(f"{{{{{label}}}}}", value)
    return re.sub(r"\{\{\w+\}\}", "", legend)  # as Grafana does with a label that a line lacks


def _caption(name: str, recording: Recording) -> str:
    faults = [f"{number}: {f.name}" for number, f in enumerate(recording.faults, start=1)]
    return (
        f"Dashboard {name}: seconds since the job was applied. Green: nothing goes wrong. Faults: "
        + "; ".join(faults[:5])
        + ";\n"
        + "; ".join(faults[5:])
    )


def main() -> int:
    """0 once all pictures are written."""
    parser = argparse.ArgumentParser(prog="python -m hack.monitoring.pictures", description=__doc__)
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder that gets the pictures")
    out = parser.parse_args().out
    with running_cluster() as cluster, tempfile.TemporaryDirectory() as folder:
        recording = asyncio.run(record(cluster, Path(folder), say=print))
    for name in DASHBOARDS:
        path = out / f"dashboard-{name}.svg"
        save(draw(name, recording), path)
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
