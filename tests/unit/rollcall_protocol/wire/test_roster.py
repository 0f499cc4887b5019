"""A roster's digest: what makes two rosters of one epoch the same."""

from dataclasses import replace

import pytest

from rollcall_protocol.wire.roster import EpochCause, Roster, RosterMember

A, B = (RosterMember(f"uid-{pod}", pod, "10.0.0.1", "cpu") for pod in "ab")
ROSTER = Roster("job", "default", 3, "uid-t", EpochCause.MEMBERS_JOINED, (A, B))


def test_order_cause_and_epoch_make_no_other_roster() -> None:
    same = replace(ROSTER, members=(B, A), cause=EpochCause.MEMBER_LOST, epoch=4)
    assert same.digest == ROSTER.digest


@pytest.mark.parametrize(
    "other",
    [
        replace(ROSTER, coordinator_uid="uid-t2"),
        replace(ROSTER, members=(A,)),
        replace(ROSTER, members=(A, replace(B, address="10.0.0.2"))),
        replace(ROSTER, members=(A, replace(B, group="npu"))),
    ],
    ids=["coordinator", "a member less", "another address", "another group"],
)
def test_coordinator_and_members_make_another_roster(other: Roster) -> None:
    assert other.digest != ROSTER.digest
