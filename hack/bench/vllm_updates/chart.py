"""Pauses for an update, and tokens a second with updates, as one SVG.

    python -m hack.bench.vllm_updates.chart RESULTS.json CHART.svg

The last line is the JSON of all figures, as the measurement printed it.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure

from hack.bench.sync_engines.chart import save
from hack.bench.vllm_updates.summary import summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_ROLLCALL, _OTHER = "#0072b2", "#7f7f7f"


def draw(found: dict[str, Any]) -> Figure:
    """A panel for each measurement that was made; KeyError without any of the two."""
    panels = [name for name in ("pauses", "throughput") if name in found]
    if not panels:
        raise KeyError("pauses, throughput")
    figure = Figure(figsize=(1 + 3.2 * len(panels), 3.2), layout="constrained")
    for axes, name in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        if name == "pauses":
            _bars(
                axes,
                "pause of a request for 229 MB (ms)",
                {"Rollcall": found[name]["pause_ms"], "vLLM's own": found[name]["vllms_pause_ms"]},
            )
        else:
            _bars(
                axes,
                "tokens a second",
                {
                    "an update every 5 s": found[name]["tokens_per_second_with_updates"],
                    "no updates": found[name]["tokens_per_second"],
                },
            )
    return figure


def _bars(axes: Axes, title: str, values: dict[str, list[float]]) -> None:
    """The median as a bar, each value as a point."""
    colours = (_ROLLCALL, _OTHER)
    for place, found in enumerate(values.values()):
        axes.bar(place, statistics.median(found), color=colours[place], width=0.6, alpha=0.7)
        axes.plot([place] * len(found), found, ".", color="black", markersize=4)
        axes.annotate(f"{statistics.median(found):.0f}", (place, 0), ha="center", va="bottom")
    axes.set_xticks(range(len(values)), list(values))
    axes.set_title(title, fontsize=9, loc="left")
    axes.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    results, chart = map(Path, sys.argv[1:])
    figures = json.loads(results.read_text())
    if figures.keys() & {"pauses", "throughput"}:
        save(draw(figures), chart)
    print(json.dumps(summary(figures)))
