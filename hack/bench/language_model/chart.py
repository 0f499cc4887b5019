"""Rewards over steps as one SVG: a panel for each task, a line for each run.

python -m hack.bench.language_model.chart CHART.svg RESULTS.jsonl ...
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure

from hack.svg_file import save
from rollcall_runtime.worker.telemetry import REWARD_WINDOW

if TYPE_CHECKING:
    from collections.abc import Sequence

_SYNC, _NO_SYNC = "#0072b2", "#7f7f7f"


def draw(runs: Sequence[dict[str, Any]]) -> Figure:
    """The chart of runs as `verdict` has them; ValueError without any."""
    if not runs:
        raise ValueError("there are no runs to draw")
    tasks = list(dict.fromkeys(run["task"] for run in runs))
    figure = Figure(figsize=(1 + 4 * len(tasks), 3.4), layout="constrained")
    panels = figure.subplots(1, len(tasks), sharey=True, squeeze=False)[0]
    for axes, task in zip(panels, tasks, strict=True):
        for run in runs:
            if run["task"] == task:
                _draw_run(axes, run)
        axes.set(ylim=(0, 1.02), xlabel="step")
        axes.set_title(task, fontsize=10, loc="left")
        axes.grid(color="#dddddd")
        axes.set_axisbelow(True)
        axes.legend(fontsize=7)
    panels[0].set_ylabel(f"mean reward of the rollout's\nlast {REWARD_WINDOW} samples", fontsize=8)
    return figure


def _draw_run(axes: Any, run: dict[str, Any]) -> None:
    steps = [step for _, step, *_ in run["looks"]]
    rewards = [reward for *_, reward in run["looks"]]
    name = f"seed {run['seed']}" + ("" if run["sync"] else ", no weight sync")
    style = ("-", "--", ":")[run["seed"] % 3]
    axes.plot(steps, rewards, style, color=_SYNC if run["sync"] else _NO_SYNC, label=name)


if __name__ == "__main__":
    chart, *results = map(Path, sys.argv[1:])
    lines = [line for path in results for line in path.read_text().splitlines()]
    save(draw([run for line in lines for run in json.loads(line)["runs"]]), chart)
