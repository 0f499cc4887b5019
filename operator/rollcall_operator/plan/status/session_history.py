"""The latest sessions of a sync group: kept in status, and recorded as events once.

Each report of the coordinator repeats its last sessions, so that none is missed between two
reconciles. Status keeps those of earlier coordinators too, and shows which are new.
"""

from collections.abc import Iterator, Sequence

from rollcall_operator.api.status import (
    HISTORY,
    LONGEST_MESSAGE,
    RLJobStatus,
    SessionRecord,
    SyncGroupStatus,
)
from rollcall_operator.plan.timestamps import to_micro_time
from rollcall_protocol.wire.job_snapshot import SessionCause, SessionReport

_EVENTS_PER_WRITE = 3
"""At most so many sessions of one status write get an event each, the latest ones."""


def append_sessions(
    old: Sequence[SessionRecord], reports: Sequence[SessionReport]
) -> tuple[SessionRecord, ...]:
    """The latest sessions of status and of the coordinator's report, oldest first."""
    last = session_key(old[-1]) if old else ()
    fresh = [_record(report) for report in reports]
    return (*old, *(record for record in fresh if session_key(record) > last))[-HISTORY:]


def session_key(record: SessionRecord) -> tuple[int, ...]:
    """Orders the sessions of a job: epoch, boot, attempt."""
    return tuple(int(part) for part in record.session.split("."))


def unexpected_session_messages(old: RLJobStatus, new: RLJobStatus) -> Iterator[str]:
    """One message for each unexpected session that `new` has and `old` does not; see
    `unexpected_sessions`.
    """
    for group in new.sync_groups:
        fresh = unexpected_sessions(group, since=old.group(group.name))
        if len(fresh) > _EVENTS_PER_WRITE:
            yield (
                f"sync group {group.name}: {len(fresh)} sessions were formed; events follow for "
                f"the latest {_EVENTS_PER_WRITE}"
            )
        for record in fresh[-_EVENTS_PER_WRITE:]:
            why = f", {record.message}" if record.message else ""
            yield (
                f"sync group {group.name}: session {record.session} was formed with the trainer "
                f"and {record.members - 1} rollouts in {record.seconds} s ({record.cause}{why})"
            )


def unexpected_sessions(
    group: SyncGroupStatus, *, since: SyncGroupStatus | None
) -> list[SessionRecord]:
    """Sessions of `group` that the earlier status `since` does not have, without those that only
    followed a new roster: their epoch has an event of its own.
    """
    old = since.sessions if since else ()
    last = session_key(old[-1]) if old else ()
    return [
        record
        for record in group.sessions
        if session_key(record) > last and record.cause != SessionCause.NEW_ROSTER
    ]


def _record(report: SessionReport) -> SessionRecord:
    return SessionRecord(
        session=str(report.session),
        cause=report.cause.value,
        message=report.detail[:LONGEST_MESSAGE],
        members=report.members,
        seconds=f"{report.seconds:.3f}",
        time=to_micro_time(report.time),
    )
