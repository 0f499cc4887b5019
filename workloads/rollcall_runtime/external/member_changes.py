"""What happened to rollouts between two reports of the coordinator. Pure."""

from collections.abc import Iterator, Mapping

from rollcall_protocol.wire.external_trainer import MemberChange
from rollcall_protocol.wire.job_snapshot import MemberReport, MemberState

JOINED, CURRENT, LEFT_OUT = "joined", "current", "left out"
_LEFT_OUT = frozenset({MemberState.SUSPECT, MemberState.STALE, MemberState.GONE})

Members = Mapping[str, MemberReport]
"""Reports by the pods' uids."""


def member_changes(before: Members, now: Members, *, at: float) -> Iterator[MemberChange]:
    """The changes, in the order of `now`; `at` is their Unix time."""
    for uid, member in now.items():
        former = before.get(uid)
        if former is None:
            yield MemberChange(JOINED, member.pod, at)
        if _current(member) and not (former is not None and _current(former)):
            yield MemberChange(CURRENT, member.pod, at, version=member.version)
        if member.state in _LEFT_OUT and (former is None or former.state not in _LEFT_OUT):
            yield MemberChange(LEFT_OUT, member.pod, at, member.version, member.why)
    for uid, former in before.items():
        if uid not in now and former.state not in _LEFT_OUT:
            yield MemberChange(LEFT_OUT, former.pod, at, former.version, "its pod is gone")


def _current(member: MemberReport) -> bool:
    return member.state is MemberState.IN_SYNC and member.version is not None
