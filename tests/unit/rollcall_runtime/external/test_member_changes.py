"""What the coordinator tells a trainer about its rollouts."""

from rollcall_protocol.wire.job_snapshot import MemberReport, MemberState, SuspicionCause
from rollcall_runtime.external.member_changes import Members, member_changes

REGISTERED, IN_SYNC = MemberState.REGISTERED, MemberState.IN_SYNC


def member(
    state: MemberState, version: int | None = None, *, pod: str = "a", reason: str = ""
) -> Members:
    cause = SuspicionCause.CONNECTION_LOST if state is MemberState.SUSPECT else None
    return {f"uid-{pod}": MemberReport(f"uid-{pod}", pod, "pool", state, version, reason, cause)}


def changes_of(before: Members, now: Members) -> list[tuple[str, str, int | None, str]]:
    changes = member_changes(before, now, at=5.0)
    return [(change.kind, change.pod, change.version, change.cause) for change in changes]


def test_a_rollout_joins_then_serves_the_newest_weights() -> None:
    assert changes_of({}, member(REGISTERED)) == [("joined", "a", None, "")]
    assert changes_of(member(REGISTERED), member(MemberState.CATCHING_UP)) == []
    assert changes_of(member(MemberState.CATCHING_UP), member(IN_SYNC, 3)) == [
        ("current", "a", 3, "")
    ]
    assert changes_of({}, member(IN_SYNC, 3)) == [
        ("joined", "a", None, ""),
        ("current", "a", 3, ""),
    ]


def test_a_rollout_in_the_session_without_weights_is_not_current() -> None:
    assert changes_of(member(REGISTERED), member(IN_SYNC)) == []
    assert changes_of(member(IN_SYNC), member(IN_SYNC, 0)) == [("current", "a", 0, "")]


def test_an_update_is_no_change() -> None:
    assert changes_of(member(IN_SYNC, 3), member(IN_SYNC, 4)) == []


def test_one_that_is_excluded_is_left_out_once_with_the_cause() -> None:
    lost = member(MemberState.SUSPECT, 3, reason="reset by peer")
    assert changes_of(member(IN_SYNC, 3), lost) == [
        ("left out", "a", 3, "ConnectionLost: reset by peer")
    ]
    assert changes_of(lost, member(MemberState.STALE, 3)) == []
    assert changes_of(lost, {}) == []
    assert changes_of(lost, member(IN_SYNC, 4)) == [("current", "a", 4, "")]


def test_one_whose_pod_is_gone_is_left_out() -> None:
    both = {**member(IN_SYNC, 3), **member(IN_SYNC, 3, pod="b")}
    assert changes_of(both, member(IN_SYNC, 3)) == [("left out", "b", 3, "its pod is gone")]
