"""Snapshots that a coordinator would report for a roster."""

from collections.abc import Mapping, Sequence

from rollcall_protocol.wire.ids import SessionId
from rollcall_protocol.wire.job_snapshot import (
    GroupReport,
    JobSnapshot,
    LostSessions,
    MemberReport,
    MemberState,
    SessionCause,
    SessionReport,
    SuspicionCause,
    TrainingProgress,
    TrainingResult,
)
from rollcall_protocol.wire.reward_errors import RewardFailure
from rollcall_protocol.wire.roster import Roster


def snapshot_of(
    roster: Roster,
    progress: TrainingProgress,
    *,
    groups: Sequence[str],
    states: Mapping[str, MemberState] | None = None,
    reasons: Mapping[str, str] | None = None,
    causes: Mapping[str, SuspicionCause] | None = None,
    running: Mapping[str, int] | None = None,
    silent: Sequence[str] = (),
    finished: TrainingResult | None = None,
    boot: int = 1,
    reward_failure: RewardFailure | None = None,
    lost_sessions: LostSessions | None = None,
) -> JobSnapshot:
    """Every member of the roster is InSync unless `states` says otherwise; `silent` never came."""
    members = tuple(
        MemberReport(
            pod_uid=member.pod_uid,
            pod=member.pod,
            pool=member.pool,
            state=(states or {}).get(member.pod_uid, MemberState.IN_SYNC),
            version=progress.step,
            reason=(reasons or {}).get(member.pod_uid, ""),
            cause=(causes or {}).get(member.pod_uid),
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
    return JobSnapshot(
        pod_uid=roster.coordinator_uid,
        boot=boot,
        roster_epoch=roster.epoch,
        roster_digest=roster.digest,
        members=members,
        progress=progress,
        finished=finished,
        groups=tuple(
            GroupReport(
                name, roster.epoch, session, roster.epoch, formed=True, lost_sessions=lost_sessions
            )
            for name in groups
        ),
        reward_failure=reward_failure,
    )
