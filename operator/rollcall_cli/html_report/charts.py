"""A job's figures as one picture: panels above each other, over the same time."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure

from rollcall_cli.html_report.timeline import GREEN, GREY, ORANGE, RED, Mark, draw_rows, marks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from matplotlib.axes import Axes

    from rollcall_cli.job_record import JobRecord
    from rollcall_protocol.step_history import StepRow

_BLUE = "#1f77b4"
_PANEL_INCHES, _ROW_INCHES = 1.7, 0.2


def draw(record: JobRecord) -> str:
    """The picture as SVG; an empty text if no step has been made."""
    steps = [row for row in record.steps if row.figures]
    panels = [panel for panel in _PANELS if any(_has(row, panel) for row in steps)]
    if not panels:
        return ""
    began, ended = steps[0].time, steps[-1].time
    happened = marks(record, began=began, ended=ended)
    rows = len({mark.row for mark in happened})
    inches = [_ROW_INCHES * (rows + 1)] * bool(rows) + [_PANEL_INCHES] * len(panels)
    figure = Figure(figsize=(10, 1 + sum(inches)), layout="constrained")
    grid = figure.subplots(len(inches), sharex=True, squeeze=False, height_ratios=inches)
    every: list[Axes] = list(grid[:, 0])
    if rows:
        draw_rows(every[0], happened, began=began)
    for axes, (title, _, plot) in zip(every[bool(rows) :], panels, strict=True):
        plot(axes, steps, began)
        axes.set_ylabel(title, fontsize=8)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
    for axes in every:
        axes.tick_params(labelsize=7)
        axes.grid(alpha=0.25)
        _epoch_lines(axes, happened, began)
    every[-1].set_xlabel("minutes since the first step was recorded", fontsize=8)
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    return inline_svg(text.getvalue())


def _epoch_lines(axes: Axes, happened: Sequence[Mark], began: float) -> None:
    """A dotted line where an epoch was opened."""
    for mark in happened:
        if mark.is_epoch:
            minute = (mark.time - began) / 60
            axes.axvline(minute, color=mark.colour, linewidth=0.8, linestyle=":")


def inline_svg(document: str) -> str:
    """An SVG document without what stands before its first element, for use within HTML."""
    return document[document.index("<svg") :]


def _line(axes: Axes, steps: Sequence[StepRow], began: float, name: str, **style: Any) -> None:
    points = [((s.time - began) / 60, s.figures[name]) for s in steps if name in s.figures]
    if points:
        axes.plot(*zip(*points, strict=True), linewidth=1.2, **style)


def _reward(axes: Axes, steps: Sequence[StepRow], began: float) -> None:
    whole = [s for s in steps if "reward/min" in s.figures and "reward/max" in s.figures]
    axes.fill_between(
        [(s.time - began) / 60 for s in whole],
        [s.figures["reward/min"] for s in whole],
        [s.figures["reward/max"] for s in whole],
        color=_BLUE,
        alpha=0.12,
        linewidth=0,
        label="least to greatest",
    )
    _line(axes, steps, began, "reward/mean", color=_BLUE, label="mean of the batch")
    _line(axes, steps, began, "eval/reward/mean", color=ORANGE, marker="o", label="held out")


def _several(*lines: tuple[str, str, str]) -> Callable[[Axes, Sequence[StepRow], float], None]:
    """Lines of (figure, label, colour)."""

    def plot(axes: Axes, steps: Sequence[StepRow], began: float) -> None:
        for name, label, colour in lines:
            _line(axes, steps, began, name, color=colour, label=label)
        axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))

    return plot


Panel = tuple[str, "tuple[str, ...]", "Callable[[Axes, Sequence[StepRow], float], None]"]
"""Title, figures of which one must be there, and what draws it."""

_PANELS: tuple[Panel, ...] = (
    ("reward", ("reward/mean", "eval/reward/mean"), _reward),
    (
        "loss",
        ("actor/pg_loss", "train/loss"),
        _several(
            ("actor/pg_loss", "policy", _BLUE),
            ("train/loss", "training", _BLUE),
            ("val/loss", "held out", ORANGE),
        ),
    ),
    (
        "staleness\n(versions)",
        ("staleness/mean",),
        _several(
            ("staleness/max", "oldest prompt of the batch", ORANGE),
            ("staleness/mean", "mean", _BLUE),
        ),
    ),
    (
        "tokens a second",
        ("perf/tokens_per_second",),
        _several(("perf/tokens_per_second", "trained on", _BLUE)),
    ),
    (
        "trainer idle\n(share of a step)",
        ("trainer/idle_ratio",),
        _several(("trainer/idle_ratio", "waits for a batch or for weights to be sent", _BLUE)),
    ),
    (
        "step (s)",
        ("timing_s/step",),
        _several(
            ("timing_s/step", "whole", GREY),
            ("timing_s/train", "training", _BLUE),
            ("timing_s/wait_for_batch", "wait for a batch", ORANGE),
            ("timing_s/wait_for_policy", "wait for the version before", RED),
        ),
    ),
    (
        "weight sync (s)",
        ("timing_s/stage",),
        _several(
            ("timing_s/snapshot", "copy", GREEN),
            ("timing_s/stage", "stage", _BLUE),
            ("timing_s/commit", "commit", ORANGE),
        ),
    ),
    (
        "tokens of\na response",
        ("response_length/mean",),
        _several(("response_length/mean", "mean", _BLUE), ("response_length/max", "most", GREY)),
    ),
)


def _has(row: StepRow, panel: Panel) -> bool:
    return any(name in row.figures for name in panel[1])
