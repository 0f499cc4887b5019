"""The latest sessions of a sync group: kept in status, told as events.

The coordinator tells its last ones each time, so that none is lost between two reconciles; status
keeps those of coordinators before it, and says which have been told.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rollcall_operator.api.status import HISTORY
from rollcall_operator.plan.model import Manifest
from rollcall_operator.plan.timestamps import to_micro_time
from rollcall_protocol.wire.job_snapshot import SessionCause, SessionReport

_TOLD_AT_ONCE = 3
"""So many sessions of one write get an event each; the rest are told as a number."""


def remembered(
    old: Sequence[Mapping[str, Any]], reports: Sequence[SessionReport]
) -> list[Mapping[str, Any]]:
    """The latest of what is in status and what the coordinator tells, oldest first."""
    last = session_key(old[-1]) if old else ()
    fresh = [_record(report) for report in reports]
    return [*old, *(record for record in fresh if session_key(record) > last)][-HISTORY:]


def session_key(record: Mapping[str, Any]) -> tuple[int, ...]:
    """What orders the sessions of a job."""
    return tuple(int(part) for part in str(record["session"]).split("."))


def news(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    """What a person would be told of the sessions that `new` has and `old`, both job statuses,
    has not. A session that only followed a roster is not news: its epoch is.
    """
    before = {group["name"]: group for group in old.get("syncGroups") or ()}
    for group in new.get("syncGroups") or ():
        fresh = unforeseen(group, since=before.get(group["name"], {}))
        if len(fresh) > _TOLD_AT_ONCE:
            yield f"group {group['name']}: {len(fresh)} sessions; the latest of them follow"
        for record in fresh[-_TOLD_AT_ONCE:]:
            why = f"{record['cause']} {record.get('message', '')}".strip()
            size, seconds = record["members"], record["seconds"]
            yield f"session {record['session']} with {size} members in {seconds} s: {why}"


def unforeseen(group: Mapping[str, Any], *, since: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Sessions of `group` that `since`, the same group before, does not have, less those that
    only followed a roster.
    """
    old = since.get("sessions") or ()
    last = session_key(old[-1]) if old else ()
    return [
        record
        for record in group.get("sessions") or ()
        if session_key(record) > last and record["cause"] != SessionCause.NEW_ROSTER
    ]


def _record(report: SessionReport) -> Manifest:
    return {
        "session": str(report.session),
        "cause": report.cause.value,
        "message": report.detail,
        "members": report.members,
        "seconds": f"{report.seconds:.3f}",
        "time": to_micro_time(report.time),
    }
