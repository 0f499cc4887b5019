"""The report as one HTML file that needs nothing else."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import jinja2

from rollcall_cli.columns import EPOCHS, POOLS, SESSIONS
from rollcall_cli.html_report.charts import draw
from rollcall_cli.html_report.samples import SCRIPT, script_hash, shown
from rollcall_cli.job_summary import steps
from rollcall_operator.api import yaml_text
from rollcall_protocol import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rollcall_cli.job_record import JobRecord

_TIME = re.compile(r"^(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)(?:\.\d+)?Z$")

Table = tuple[str, tuple[str, ...], "Sequence[Sequence[Any]]"]
"""Title, headings of columns, rows."""


def render(record: JobRecord, *, pictures: Mapping[str, str] | None = None) -> str:
    """HTML of the job; `pictures` are more SVGs by title. All texts of the job are escaped."""
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = files(__package__).joinpath("page.html.j2").read_text(encoding="utf-8")
    manifest = {key: record.job[key] for key in ("apiVersion", "kind", "spec")}
    return environment.from_string(template).render(
        record=record,
        facts=_facts(record),
        chart=draw(record),
        pictures=pictures or {},
        tables=[table for table in _tables(record) if table[2]],
        samples=[shown(sample) for sample in reversed(record.samples)],
        script=SCRIPT,
        script_hash=script_hash(),
        spec=yaml_text.dump(manifest),
        written=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        version=__version__,
    )


def _facts(record: JobRecord) -> list[tuple[str, Any]]:
    status = record.status
    progress, trainer = status.get("progress") or {}, status.get("trainer") or {}
    found = [
        ("phase", status.get("phase")),
        ("step", steps(progress)),
        ("weight version", progress.get("weightVersion")),
        ("mean reward of the rollouts' newest samples", progress.get("rolloutReward")),
        ("rollouts ready", status.get("rollouts")),
        ("epoch", status.get("epoch")),
        ("trainer restarts", trainer.get("totalRestarts")),
        ("training waits", progress.get("paused")),
        ("warning", progress.get("warning")),
        ("started", status.get("startTime")),
        ("completed", status.get("completionTime")),
        ("no report since", status.get("staleSince")),
    ]
    return [(name, _cell(value)) for name, value in found if value not in (None, "")]


# Of each column its field in the status, and its heading.
_CONDITIONS = {
    "type": "condition",
    "status": "status",
    "reason": "reason",
    "lastTransitionTime": "since (UTC)",
    "message": "message",
}
_EVENTS = ("time (UTC)", "type", "reason", "message")


def _tables(record: JobRecord) -> list[Table]:
    status, group = record.status, record.default_group
    return [
        _table("Conditions", _CONDITIONS, status.get("conditions")),
        _table("Epochs", EPOCHS, group.get("history")),
        _table("Sessions", SESSIONS, group.get("sessions")),
        _table("Pools", POOLS, status.get("pools")),
        ("Events", _EVENTS, [_event(event) for event in sorted(record.events, key=_last_seen)]),
    ]


def _table(
    title: str, columns: Mapping[str, str], objects: Sequence[Mapping[str, Any]] | None
) -> Table:
    rows = [[_cell(found.get(name, "")) for name in columns] for found in objects or ()]
    return title, tuple(columns.values()), rows


def _event(event: Mapping[str, Any]) -> list[str]:
    return [
        _cell(_last_seen(event)),
        *(str(event.get(name) or "") for name in ("type", "reason", "note")),
    ]


def _last_seen(event: Mapping[str, Any]) -> str:
    """Of events.k8s.io/v1."""
    series = event.get("series") or {}
    return str(series.get("lastObservedTime") or event.get("eventTime") or "")


def _cell(value: Any) -> Any:
    """Times of the API to the second, as people read them."""
    return _TIME.sub(r"\1 \2", value) if isinstance(value, str) else value
