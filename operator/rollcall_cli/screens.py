"""Tables and sentences for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from rollcall_cli.columns import EPOCHS, POOLS, SESSIONS
from rollcall_cli.job_summary import steps
from rollcall_operator.api.conditions import PROBLEM_REASONS
from rollcall_operator.plan.timestamps import from_time

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rich.console import Console, RenderableType

SHOWN_EPOCHS, SHOWN_ROLLOUTS = 5, 8
_WIDEST = 250  # columns, of lines with long names
_WHOLE = {"name", "pool", "node", "type", "reason", "about", "session", "cause", "group"}
"""Columns with words that people copy: they are not broken over lines."""
_EPOCHS = EPOCHS | {"time": "opened"}
_SESSIONS = {"session": "session", "group": "group"} | SESSIONS | {"time": "usable"}
_ROLLOUTS = {
    "name": "rollout",
    "pool": "pool",
    "node": "node",
    "ready": "ready",
    "reason": "weights",
    "message": "what it says",
}
_PROBLEMS = {"type": "condition", "reason": "reason", "message": "what it says"}
_CONDITIONS = {"type": "condition", "status": "is", "reason": "reason", "message": "what it says"}
_PODS = {
    "name": "pod",
    "role": "role",
    "phase": "phase",
    "ready": "ready",
    "restarts": "restarts",
    "says": "what it says",
}
_EVENTS = {"time": "event", "reason": "reason", "about": "about", "message": "what it says"}


def status_screen(summary: Mapping[str, Any], *, now: float) -> RenderableType:
    """All that people ask first of a job, on one screen; `now` is in Unix seconds."""
    parts: list[RenderableType] = [*_headline(summary, now)]
    if summary.get("problems"):
        parts += ["", _table(_PROBLEMS, summary["problems"], now)]
    behind = [rollout for rollout in summary.get("rollouts", ()) if not rollout["inSync"]]
    parts += ["", _counts(summary, len(behind))]
    if summary.get("pools"):
        parts.append(_table(POOLS, summary["pools"], now))
    if behind:
        parts += ["", "These rollouts do not serve the current weights:"]
        parts.append(_table(_ROLLOUTS, behind[:SHOWN_ROLLOUTS], now))
        more = len(behind) - SHOWN_ROLLOUTS
        if more > 0:
            parts.append(Text(f"and {more} more; rollcall pools {summary['name']} lists all"))
    if summary.get("epochs"):
        latest = summary["epochs"][-SHOWN_EPOCHS:]
        parts += ["", _table(_EPOCHS, latest, now)]
    return Group(*parts)


def epochs_screen(summary: Mapping[str, Any], *, now: float) -> RenderableType:
    """The epochs, and the sessions that were formed in them."""
    if not summary.get("epochs"):
        return Text("The job has had no epoch yet.")
    return Group(
        _table(_EPOCHS, summary["epochs"], now), "", _table(_SESSIONS, summary["sessions"], now)
    )


def pools_screen(summary: Mapping[str, Any], *, now: float) -> RenderableType:
    """The pools, and each of their rollouts."""
    if not summary.get("pools"):
        return Text("No RolloutPool serves the job.")
    return Group(
        _table(POOLS, summary["pools"], now), "", _table(_ROLLOUTS, summary["rollouts"], now)
    )


def description_screen(found: Mapping[str, Any], *, now: float) -> RenderableType:
    """Conditions, pods and events of a job."""
    title = f"{found['namespace']}/{found['name']}: {found['phase']}"
    parts: list[RenderableType] = [Text(title, style="bold")]
    for name, columns in (("conditions", _CONDITIONS), ("pods", _PODS), ("events", _EVENTS)):
        rows = found[name]
        parts += ["", _table(columns, rows, now) if rows else Text(f"There are no {name}.")]
    return Group(*parts)


def learning_words(reason: str) -> str:
    """Such as `stands still (RewardsAlike)`, from the reason of the condition Learning."""
    return f"stands still ({reason})" if reason in PROBLEM_REASONS else reason.lower()


def ago(time: str, now: float) -> str:
    """Such as `5 min ago`, from an API time."""
    seconds = max(0.0, now - from_time(time))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"


def print_wide(console: Console, screen: RenderableType) -> None:
    """Print. Lines are longer than a terminal that is too narrow for the names of pods."""
    least = Measurement.get(console, console.options.update(max_width=_WIDEST), screen).minimum
    console.width = max(console.width, least)
    console.print(screen)


def _headline(summary: Mapping[str, Any], now: float) -> Iterable[RenderableType]:
    phase = summary.get("phase", "Pending")
    words = [Text(f"{summary['namespace']}/{summary['name']}: {phase}", style="bold")]
    if "step" in summary:
        words.append(Text(f"step {steps(summary)}"))
        words.append(Text(f"weight version {summary.get('weightVersion', 0)}"))
    if "rolloutReward" in summary:
        words.append(Text(f"reward of the rollouts' newest samples {summary['rolloutReward']}"))
    if "stepsAlike" in summary:
        words.append(
            Text(f"all rewards of a prompt alike in the last {summary['stepsAlike']} steps")
        )
    if "learning" in summary:
        words.append(Text(learning_words(summary["learning"])))
    if "startTime" in summary:
        words.append(Text(f"started {ago(summary['startTime'], now)}"))
    yield Text(", ").join(words)
    if "staleSince" in summary:
        since = ago(summary["staleSince"], now)
        yield f"The coordinator last sent something {since}: what is said of progress is as old."
    if "paused" in summary:
        yield Text(f"Training waits: {summary['paused']}")
    if "warning" in summary:
        yield Text(f"Warning: {summary['warning']}")


def _counts(summary: Mapping[str, Any], behind: int) -> Text:
    trainer, rollouts = summary.get("trainer", {}), len(summary.get("rollouts", ()))
    return Text(
        f"Trainer pods ready: {trainer.get('ready', 0)} of {trainer.get('replicas', 0)}, restarts: "
        f"{trainer.get('totalRestarts', 0)}. Rollouts that serve the current weights: "
        f"{rollouts - behind} of {rollouts}."
    )


def _table(columns: Mapping[str, str], rows: Sequence[Mapping[str, Any]], now: float) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name, title in columns.items():
        table.add_column(title, overflow="fold", no_wrap=name in _WHOLE)
    for row in rows:
        table.add_row(*(_cell(name, row.get(name, ""), now) for name in columns))
    return table


def _cell(name: str, value: Any, now: float) -> Text:
    if name == "time":
        return Text(ago(str(value), now))
    if isinstance(value, bool):
        return Text("yes" if value else "no")
    return Text(str(value))
