"""Learning curves of algorithms as one SVG: a panel for each, a line for each seed."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

_COLUMNS = 4
_LINE, _GOAL = "#0072b2", "#d55e00"


def draw(curves: Mapping[str, Sequence[Sequence[float]]], *, goal: float, caption: str) -> Figure:
    """The chart of the rewards of each algorithm's runs; ValueError without any."""
    if not any(curves.values()):
        raise ValueError("there are no curves to draw")
    rows = -(-len(curves) // _COLUMNS)
    figure = Figure(figsize=(2.6 * _COLUMNS, 0.4 + 2 * rows), layout="constrained")
    panels = figure.subplots(rows, _COLUMNS, sharex=True, sharey=True, squeeze=False).flatten()
    for axes, (name, runs) in zip(panels, curves.items(), strict=False):
        for run in runs:
            axes.plot(range(len(run)), run, color=_LINE, alpha=0.6, linewidth=1)
        axes.axhline(goal, color=_GOAL, linewidth=0.8)
        axes.set_title(name, fontsize=9, loc="left")
        axes.set_ylim(0, 1.02)
        axes.grid(color="#dddddd")
        axes.set_axisbelow(True)
    for axes in panels[len(curves) :]:
        axes.set_visible(False)
    panels[0].set_ylabel("reward", fontsize=8)
    figure.supxlabel(f"steps; a line a seed, orange: {goal:g}\n{caption}", fontsize=8)
    return figure
