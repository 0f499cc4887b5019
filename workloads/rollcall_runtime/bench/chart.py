"""The figures of all engines as one SVG: GB a second to each receiver, a panel for each size."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import chain
from typing import Any

Case = Mapping[str, Any]

# Okabe and Ito's colours, which colour-blind readers can tell apart, then two greys.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6d31", "#7f7f7f")
_TCP = "TCP star"
_TICKS = [10.0**decade * factor for decade in range(-6, 7) for factor in (1, 2, 5)]
_PANEL_WIDTH, _PANEL_HEIGHT = 360, 260
_LEFT, _TOP, _GAP, _BOTTOM, _LEGEND = 52, 44, 60, 60, 130
_FONT = "font-family='system-ui, sans-serif'"


@dataclass(frozen=True, slots=True)
class _Scale:
    """Receivers to x, evenly spaced; GB/s to y, logarithmic."""

    receivers: tuple[int, ...]
    low: float
    high: float
    left: float

    def x(self, receivers: int) -> float:
        step = _PANEL_WIDTH / max(len(self.receivers) - 1, 1)
        return self.left + step * self.receivers.index(receivers)

    def y(self, speed: float) -> float:
        part = math.log(speed / self.low) / math.log(self.high / self.low)
        return _TOP + _PANEL_HEIGHT * (1 - part)


def draw(cases: Iterable[Case]) -> str:
    """The chart. Cases that failed are left out; ValueError when there is none else."""
    good = [case for case in cases if "error" not in case and case["senders"] == 1]
    if not good:
        raise ValueError("there are no figures to draw")
    sizes = sorted({case["bytes"] for case in good})
    names = sorted({case["engine"] for case in good})
    colours = {name: _COLOURS[i % len(_COLOURS)] for i, name in enumerate(names)}
    width = _LEFT + len(sizes) * (_PANEL_WIDTH + _GAP) + _LEGEND
    height = _TOP + _PANEL_HEIGHT + _BOTTOM
    low, high = _bounds(good)
    parts: list[str] = []
    for number, size in enumerate(sizes):
        panel = [case for case in good if case["bytes"] == size]
        receivers = tuple(sorted({case["receivers"] for case in panel}))
        left = _LEFT + number * (_PANEL_WIDTH + _GAP)
        scale = _Scale(receivers, low, high, left)
        parts += chain(_axes(scale, size), _lines(scale, panel, colours))
    parts += _legend(colours, left=width - _LEGEND)
    body = "\n".join(parts)
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' {_FONT} "
        f"font-size='12'>\n<rect width='{width}' height='{height}' fill='white'/>\n{body}\n</svg>\n"
    )


def _bounds(cases: Sequence[Case]) -> tuple[float, float]:
    speeds = [case[key] for case in cases for key in ("gbps_per_receiver", "tcp_gbps_per_receiver")]
    speeds = [speed for speed in speeds if speed > 0]
    low = max((tick for tick in _TICKS if tick <= min(speeds)), default=_TICKS[0])
    high = min((tick for tick in _TICKS if tick > max(speeds)), default=_TICKS[-1])
    return low, high


def _axes(scale: _Scale, size: int) -> Iterator[str]:
    left, right, bottom = scale.left, scale.left + _PANEL_WIDTH, _TOP + _PANEL_HEIGHT
    yield _text(left, _TOP - 16, f"{_size(size)} of weights", weight="bold")
    for speed in (tick for tick in _TICKS if scale.low <= tick <= scale.high):
        y = scale.y(speed)
        yield f"<path d='M{left} {y:.1f}H{right}' stroke='#dddddd'/>"
        yield _text(left - 6, y + 4, f"{speed:g}", anchor="end")
    for receivers in scale.receivers:
        yield _text(scale.x(receivers), bottom + 18, str(receivers), anchor="middle")
    yield _text(left + _PANEL_WIDTH / 2, bottom + 38, "receivers", anchor="middle")
    yield _text(left - 6, _TOP - 16, "GB/s", anchor="end")


def _lines(scale: _Scale, panel: Sequence[Case], colours: Mapping[str, str]) -> Iterator[str]:
    stars: dict[int, list[float]] = {}
    for case in panel:
        stars.setdefault(case["receivers"], []).append(case["tcp_gbps_per_receiver"])
    star = [(receivers, sorted(each)[len(each) // 2]) for receivers, each in sorted(stars.items())]
    yield _line(scale, star, "black", dash=" stroke-dasharray='5 4'")
    for name, colour in colours.items():
        points = sorted(
            (case["receivers"], case["gbps_per_receiver"])
            for case in panel
            if case["engine"] == name
        )
        yield _line(scale, points, colour)


def _line(
    scale: _Scale, points: Sequence[tuple[int, float]], colour: str, *, dash: str = ""
) -> str:
    at = [(scale.x(receivers), scale.y(speed)) for receivers, speed in points if speed > 0]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in at)
    dots = "".join(f"<circle cx='{x:.1f}' cy='{y:.1f}' r='3' fill='{colour}'/>" for x, y in at)
    return f"<polyline points='{path}' fill='none' stroke='{colour}' stroke-width='2'{dash}/>{dots}"


def _legend(colours: Mapping[str, str], *, left: float) -> Iterator[str]:
    for number, (name, colour) in enumerate({_TCP: "black", **colours}.items()):
        y = _TOP + 20 * number
        dash = " stroke-dasharray='5 4'" if name == _TCP else ""
        yield f"<path d='M{left} {y}h24' stroke='{colour}' stroke-width='2'{dash}/>"
        yield _text(left + 30, y + 4, name)


def _text(x: float, y: float, text: str, *, anchor: str = "start", weight: str = "normal") -> str:
    return (
        f"<text x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}' font-weight='{weight}' "
        f"fill='#222222'>{escape(text)}</text>"
    )


def _size(nbytes: int) -> str:
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if nbytes >= unit:
            return f"{nbytes / unit:g} {name}"
    return f"{nbytes} bytes"
