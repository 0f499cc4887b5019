"""The distribution of each event's trials as one SVG: a dot a trial, marks for median and goals."""

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping
from html import escape

from hack.bench.recovery.report import GOALS
from hack.bench.recovery.stats import Record, percentile

ROWS: Mapping[str, str] = {
    "kill_idle": "rollout killed, idle",
    "kill_stage": "rollout killed in mid-STAGE",
    "stop_beyond_bound": "rollout stopped, beyond the bound",
    "stall": "longest step, beyond the usual one",
    "scale_up": "2 to 6: four in sync",
    "trainer_kill": "trainer killed: training again",
    "naive_kill": "rollout killed, naive policy",
}
_LEFT, _WIDTH, _ROW, _TOP, _BOTTOM, _RIGHT = 245, 560, 46, 40, 56, 130
_LEAST = 0.01  # seconds: what is less is drawn here
_TICKS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
_FONT = "font-family='system-ui, sans-serif'"


def draw(records: Iterable[Record]) -> str:
    """The chart; ValueError when there are no figures of the events that it shows."""
    values = dict[str, list[float]]()
    for record in records:
        if record.event in ROWS and record.seconds is not None:
            values.setdefault(record.event, []).append(record.seconds)
    if not values:
        raise ValueError("there are no figures to draw")
    rows = [event for event in ROWS if event in values]
    width, height = _LEFT + _WIDTH + _RIGHT, _TOP + _ROW * len(rows) + _BOTTOM
    parts = [*_axes(height - _BOTTOM)]
    for number, event in enumerate(rows):
        parts += _row(event, values[event], y=_TOP + _ROW * (number + 0.5))
    body = "\n".join(parts)
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' {_FONT} "
        f"font-size='12'>\n<rect width='{width}' height='{height}' fill='white'/>\n{body}\n</svg>\n"
    )


def _x(seconds: float) -> float:
    part = math.log(max(seconds, _LEAST) / _LEAST) / math.log(_TICKS[-1] / _LEAST)
    return _LEFT + _WIDTH * min(part, 1.0)


def _axes(bottom: float) -> Iterator[str]:
    for tick in _TICKS:
        yield f"<path d='M{_x(tick):.1f} {_TOP}V{bottom}' stroke='#dddddd'/>"
        yield _text(_x(tick), bottom + 16, f"{tick:g}", anchor="middle")
    yield _text(_LEFT + _WIDTH / 2, bottom + 36, "seconds", anchor="middle")
    yield _text(_LEFT, _TOP - 18, "a dot a trial; bar: median; triangles: goals for median and p99")


def _row(event: str, values: list[float], *, y: float) -> Iterator[str]:
    yield _text(_LEFT - 10, y + 4, ROWS[event], anchor="end")
    for number, seconds in enumerate(sorted(values)):
        offset = (number % 5 - 2) * 4  # side by side, so that equal ones can be told apart
        yield (
            f"<circle cx='{_x(seconds):.1f}' cy='{y + offset:.1f}' r='2.5' fill='#0072b2' "
            "fill-opacity='0.5'/>"
        )
    median = _x(statistics.median(values))
    yield f"<path d='M{median:.1f} {y - 14:.1f}v28' stroke='#222222' stroke-width='2'/>"
    for goal in GOALS.get(event, ()):
        x = _x(goal)
        yield f"<path d='M{x - 4:.1f} {y - 20:.1f}h8l-4 7z' fill='#d55e00'/>"
    said = f"{statistics.median(values):.2f}, p99 {percentile(values, 0.99):.2f} s"
    yield _text(_LEFT + _WIDTH + 10, y + 4, said)


def _text(x: float, y: float, text: str, *, anchor: str = "start") -> str:
    return (
        f"<text x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}' fill='#222222'>{escape(text)}</text>"
    )
