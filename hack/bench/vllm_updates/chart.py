"""Pauses for an update, tokens a second with updates, and tokens of the front, as one SVG.

    python -m hack.bench.vllm_updates.chart RESULTS.jsonl CHART.svg

Each line of the results is what a run wrote; runs may have measured different things. The last line
that is printed is the JSON of all figures.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure

from hack.bench.vllm_updates.summary import summary
from hack.svg_file import save

if TYPE_CHECKING:
    from collections.abc import Iterable

    from matplotlib.axes import Axes

_COLOURS = ("#0072b2", "#7f7f7f")


def draw(found: dict[str, Any]) -> Figure:
    """A panel for each measurement that was made; KeyError without any that has one."""
    panels = {name: panel for name, panel in _PANELS.items() if name in found}
    if not panels:
        raise KeyError(", ".join(_PANELS))
    figure = Figure(figsize=(1 + 2.7 * len(panels), 3.2), layout="constrained")
    axes_of_panels = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, (name, panel) in zip(axes_of_panels, panels.items(), strict=True):
        panel(axes, found[name])
    return figure


def _pauses(axes: Axes, found: dict[str, Any]) -> None:
    values = {"Rollcall": found["pause_ms"], "vLLM's own": found["vllms_pause_ms"]}
    _bars(axes, f"pause for {found['megabytes']} MB (ms)", values)


def _throughput(axes: Axes, found: dict[str, Any]) -> None:
    values = {
        "an update\nevery 5 s": found["tokens_per_second_with_updates"],
        "no updates": found["tokens_per_second"],
    }
    _bars(axes, "tokens a second", values)


def _front(axes: Axes, found: dict[str, Any]) -> None:
    """From when a token is due to when it comes."""
    ways = {"through\nthe front": "front", "from the\nrollout": "direct"}
    for place, way in enumerate(ways.values()):
        times = found["token_ms"][way]
        axes.bar(place, times["p50"], color=_COLOURS[place], width=0.6, alpha=0.7)
        axes.plot([place - 0.3, place + 0.3], [times["p99"]] * 2, color="black", linewidth=1)
        for name, above in (("p50", 0.0), ("p99", times["p99"])):
            axes.annotate(f"{name} {times[name]:.1f}", (place, above), ha="center", va="bottom")
    axes.set_ylim(0, 1.15 * max(found["token_ms"][way]["p99"] for way in ways.values()))
    _label(axes, "token after it is due, 64 streams (ms)", ways)


def _bars(axes: Axes, title: str, values: dict[str, list[float]]) -> None:
    """The median as a bar, each value as a point."""
    for place, found in enumerate(values.values()):
        axes.bar(place, statistics.median(found), color=_COLOURS[place], width=0.6, alpha=0.7)
        axes.plot([place] * len(found), found, ".", color="black", markersize=4)
        axes.annotate(f"{statistics.median(found):.0f}", (place, 0), ha="center", va="bottom")
    _label(axes, title, values)


def _label(axes: Axes, title: str, names: Iterable[str]) -> None:
    labels = list(names)
    axes.set_xticks(range(len(labels)), labels)
    axes.set_title(title, fontsize=9, loc="left")
    axes.spines[["top", "right"]].set_visible(False)


_PANELS = {
    "pauses": _pauses,
    "pauses_smollm2": _pauses,
    "throughput": _throughput,
    "front": _front,
}


if __name__ == "__main__":
    results, chart = map(Path, sys.argv[1:])
    figures: dict[str, Any] = {}
    for line in results.read_text().splitlines():
        figures |= json.loads(line)
    del figures["run"]
    if figures.keys() & _PANELS.keys():
        save(draw(figures), chart)
    print(json.dumps(summary(figures)))
