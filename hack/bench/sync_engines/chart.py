"""Throughput of all engines as an SVG and a Markdown table: GB a second to each receiver."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

Case = Mapping[str, Any]

# Okabe and Ito's colours, which colour-blind readers can distinguish, then two greys.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6d31", "#7f7f7f")
_TCP = "TCP star"


def draw(cases: Iterable[Case], *, caption: str) -> Figure:
    """A panel for each size; `caption` names the run.

    Failed cases are left out; ValueError without figures.
    """
    good = [case for case in cases if "error" not in case and case["senders"] == 1]
    if not good:
        raise ValueError("there are no figures to draw")
    sizes = sorted({case["bytes"] for case in good})
    engines = sorted({case["engine"] for case in good})
    figure = Figure(figsize=(1.5 + 4 * len(sizes), 4), layout="constrained")
    panels = figure.subplots(1, len(sizes), sharey=True, squeeze=False)[0]
    for axes, size in zip(panels, sizes, strict=True):
        _draw_panel(axes, [case for case in good if case["bytes"] == size], engines)
        axes.set_title(f"{_quantity(size)} of weights", fontsize=9, loc="left")
    panels[0].set_ylabel("GB/s to each receiver")
    panels[-1].legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False, fontsize=8)
    figure.supxlabel(caption, fontsize=8)
    return figure


def _draw_panel(axes: Axes, cases: Sequence[Case], engines: Sequence[str]) -> None:
    receivers = sorted({case["receivers"] for case in cases})
    places = {count: place for place, count in enumerate(receivers)}  # evenly spaced
    baseline = [
        statistics.median(c["tcp_gbps_per_receiver"] for c in cases if c["receivers"] == count)
        for count in receivers
    ]
    axes.plot(range(len(receivers)), baseline, "--o", color="black", label=_TCP, markersize=3)
    for number, engine in enumerate(engines):
        points = sorted(
            (places[case["receivers"]], case["gbps_per_receiver"])
            for case in cases
            if case["engine"] == engine
        )
        colour = _COLOURS[number % len(_COLOURS)]
        axes.plot(*zip(*points, strict=True), "-o", color=colour, label=engine, markersize=3)
    axes.set_yscale("log")
    axes.set_xticks(range(len(receivers)), [str(count) for count in receivers])
    axes.set_xlabel("receivers")
    axes.grid(axis="y", color="#dddddd")
    axes.set_axisbelow(True)


def _quantity(nbytes: int) -> str:
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if nbytes >= unit:
            return f"{nbytes / unit:g} {name}"
    return f"{nbytes} bytes"


def table(cases: Iterable[Mapping[str, Any]]) -> str:
    """A row for each size and engine, a column for each number of receivers.

    A cell has GB/s to each receiver, and their ratio to the TCP star of the same case.
    """
    cells = {(c["bytes"], c["engine"], c["receivers"]): _cell(c) for c in cases}
    receivers = sorted({count for _, _, count in cells})
    lines = [
        "| MiB | engine | "
        + " | ".join(f"{count} receiver" + "s" * (count > 1) for count in receivers)
        + " |",
        "|---" * (2 + len(receivers)) + "|",
    ]
    for size, engine in sorted({(size, engine) for size, engine, _ in cells}):
        row = " | ".join(cells.get((size, engine, count), "") for count in receivers)
        lines.append(f"| {size / 2**20:g} | {engine} | {row} |")
    return "\n".join(lines)


def _cell(case: Mapping[str, Any]) -> str:
    if "error" in case:
        return "failed"
    return f"{case['gbps_per_receiver']:.2f}, {case['ratio_to_tcp']:.2f}"
