"""What a coordinator would say of a roster."""

from collections.abc import Mapping, Sequence

from rollcall_protocol.ids import SessionId
from rollcall_protocol.reports import (
    Finished,
    GroupReport,
    MemberReport,
    MemberState,
    Progress,
    SessionCause,
    SessionReport,
    Snapshot,
)
from rollcall_protocol.roster import Roster


def snapshot_of(
    roster: Roster,
    progress: Progress,
    *,
    groups: Sequence[str],
    states: Mapping[str, MemberState] | None = None,
    reasons: Mapping[str, str] | None = None,
    running: Mapping[str, int] | None = None,
    silent: Sequence[str] = (),
    finished: Finished | None = None,
    boot: int = 1,
) -> Snapshot:
    """Everybody on the roster is InSync unless `states` says otherwise; `silent` never came."""
    members = tuple(
        MemberReport(
            pod_uid=member.pod_uid,
            pod=member.pod,
            pool=member.pool,
            state=(states or {}).get(member.pod_uid, MemberState.IN_SYNC),
            version=progress.step,
            reason=(reasons or {}).get(member.pod_uid, ""),
            running=(running or {}).get(member.pod_uid),
        )
        for member in roster.members
        if member.pod_uid not in silent
    )
    session = SessionReport(
        session=SessionId(roster.epoch, boot, 1),
        cause=SessionCause.NEW_ROSTER,
        members=1 + sum(member.state is MemberState.IN_SYNC for member in members),
        seconds=0.25,
    )
    return Snapshot(
        pod_uid=roster.coordinator_uid,
        boot=boot,
        roster_epoch=roster.epoch,
        roster_digest=roster.digest,
        members=members,
        progress=progress,
        finished=finished,
        groups=tuple(GroupReport(name, roster.epoch, session, roster.epoch) for name in groups),
    )
