"""A job's figures as one picture: panels above each other, over the same time."""

from __future__ import annotations

import io
from datetime import datetime
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from matplotlib.axes import Axes

    from rollcall_cli.job_record import JobRecord
    from rollcall_protocol.step_history import StepRow

_GREY = "#777777"
_BLUE, _ORANGE, _GREEN, _RED = "#1f77b4", "#ff7f0e", "#2ca02c", "#d62728"
_EPOCH_COLOURS = {"MemberLost": _RED, "CoordinatorReplaced": _RED, "MembersJoined": _GREEN}
_PANEL_INCHES = 1.7


def draw(record: JobRecord) -> str:
    """The picture as SVG; an empty text if no step has been made."""
    steps = [row for row in record.steps if row.figures]
    panels = [panel for panel in _PANELS if any(_has(row, panel) for row in steps)]
    if not panels:
        return ""
    figure = Figure(figsize=(10, 1 + _PANEL_INCHES * len(panels)), layout="constrained")
    every: list[Axes] = list(figure.subplots(len(panels), sharex=True, squeeze=False)[:, 0])
    began = steps[0].time
    for axes, (title, _, plot) in zip(every, panels, strict=True):
        plot(axes, steps, began)
        axes.set_ylabel(title, fontsize=8)
        axes.tick_params(labelsize=7)
        axes.grid(alpha=0.25)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
    _epochs(every, record, began=began, ended=steps[-1].time)
    every[-1].set_xlabel("minutes since the first step was recorded", fontsize=8)
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    return inline_svg(text.getvalue())


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
    _line(axes, steps, began, "eval/reward/mean", color=_ORANGE, marker="o", label="held out")


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
            ("val/loss", "held out", _ORANGE),
        ),
    ),
    (
        "staleness\n(versions)",
        ("staleness/mean",),
        _several(
            ("staleness/max", "oldest prompt of the batch", _ORANGE),
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
            ("timing_s/step", "whole", _GREY),
            ("timing_s/train", "training", _BLUE),
            ("timing_s/wait_for_batch", "wait for a batch", _ORANGE),
            ("timing_s/wait_for_publish", "wait for the version before", _RED),
        ),
    ),
    (
        "weight sync (s)",
        ("timing_s/stage",),
        _several(
            ("timing_s/snapshot", "copy", _GREEN),
            ("timing_s/stage", "stage", _BLUE),
            ("timing_s/commit", "commit", _ORANGE),
        ),
    ),
    (
        "tokens of\na response",
        ("response_length/mean",),
        _several(("response_length/mean", "mean", _BLUE), ("response_length/max", "most", _GREY)),
    ),
)


def _has(row: StepRow, panel: Panel) -> bool:
    return any(name in row.figures for name in panel[1])


def _epochs(every: Sequence[Axes], record: JobRecord, *, began: float, ended: float) -> None:
    """A line through all panels where an epoch was opened, with its cause on the first."""
    for epoch in record.default_group.get("history") or ():
        opened = _seconds(epoch["time"])
        if not began <= opened <= ended:
            continue
        minute = (opened - began) / 60
        colour = _EPOCH_COLOURS.get(epoch["cause"], _GREY)
        for axes in every:
            axes.axvline(minute, color=colour, linewidth=0.8, linestyle=":")
        every[0].annotate(
            f"{epoch['epoch']} {epoch['cause']}",
            (minute, 1.02),
            xycoords=("data", "axes fraction"),
            rotation=30,
            fontsize=6,
            color=colour,
        )


def _seconds(time: str) -> float:
    """Since 1970, of a Kubernetes timestamp."""
    return datetime.fromisoformat(time).timestamp()
