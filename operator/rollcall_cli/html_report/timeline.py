"""When epochs were opened, sessions rebuilt, and what went wrong: a row for each kind."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from rollcall_cli.job_summary import epochs, sessions
from rollcall_protocol.wire.job_snapshot import SessionCause
from rollcall_protocol.wire.roster import EpochCause

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from matplotlib.axes import Axes

    from rollcall_cli.job_record import JobRecord

GREY, GREEN, RED, ORANGE = "#777777", "#2ca02c", "#d62728", "#ff7f0e"
_EPOCHS = {
    EpochCause.MEMBER_LOST: RED,
    EpochCause.COORDINATOR_REPLACED: RED,
    EpochCause.MEMBERS_JOINED: GREEN,
}
_MOST_NUMBERS = 60  # more would cover each other


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happened: `row` is its kind, `time` in Unix seconds."""

    row: str
    time: float
    colour: str
    text: str = ""
    is_epoch: bool = False


def marks(record: JobRecord, *, began: float, ended: float) -> list[Mark]:
    """What happened between two times: epochs first, then rebuilt sessions, then warnings."""
    found = (*_epochs(record), *_sessions(record), *_warnings(record))
    return [mark for mark in found if began <= mark.time <= ended]


def draw_rows(axes: Axes, found: Sequence[Mark], *, began: float) -> None:
    """A row for each kind of mark, in the order of their first ones."""
    rows = list(dict.fromkeys(mark.row for mark in found))
    for mark in found:
        minute, row = (mark.time - began) / 60, rows.index(mark.row)
        axes.plot(minute, row, marker="|", markersize=9, markeredgewidth=1.6, color=mark.colour)
        if mark.text and len(found) <= _MOST_NUMBERS:
            axes.annotate(
                mark.text,
                (minute, row),
                xytext=(3, 0),
                textcoords="offset points",
                va="center",
                fontsize=6,
                color=mark.colour,
            )
    axes.set_yticks(range(len(rows)), rows)
    axes.set_ylim(len(rows) - 0.4, -0.6)


def _epochs(record: JobRecord) -> Iterator[Mark]:
    for epoch in epochs(record):
        colour = _EPOCHS.get(epoch["cause"], GREY)
        row, number = f"epoch: {epoch['cause']}", str(epoch["epoch"])
        yield Mark(row, _seconds(epoch["time"]), colour, number, is_epoch=True)


def _sessions(record: JobRecord) -> Iterator[Mark]:
    for session in sessions(record):
        if session["cause"] != SessionCause.NEW_ROSTER:
            yield Mark(f"session: {session['cause']}", _seconds(session["time"]), ORANGE)


def _warnings(record: JobRecord) -> Iterator[Mark]:
    for event in record.events:
        if event.get("type") == "Warning" and event.get("eventTime"):
            yield Mark(f"warning: {event.get('reason')}", _seconds(event["eventTime"]), RED)


def _seconds(time: str) -> float:
    """Since 1970, of a Kubernetes timestamp."""
    return datetime.fromisoformat(time).timestamp()
