"""Which snapshots of a coordinator ask for a reconcile at once; which roster is to be pushed."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import pytest

from rollcall_operator.control.coordinator_link import CoordinatorLink
from rollcall_operator.kube.pod_dialer import PodAddress
from rollcall_protocol.wire.job_snapshot import (
    GroupReport,
    JobSnapshot,
    MemberReport,
    MemberState,
    TrainingProgress,
    TrainingResult,
)
from rollcall_protocol.wire.learning import LearningReport, LearningState
from rollcall_protocol.wire.roster import EpochCause, Roster, RosterMember

if TYPE_CHECKING:
    from rollcall_operator.control.coordinator_link import LinkCredentials, LinkMetrics
    from rollcall_operator.kube.pod_dialer import PodDialer

POD = PodAddress(namespace="ns", name="a-trainer-0", uid="uid-0", ip="10.0.0.1")
MEMBER = MemberReport("uid-1", "p", "pool", MemberState.SUSPECT, 3, "silent", None)
PROGRESS = TrainingProgress(step=0, max_steps=10, weight_version=0, rollout_reward=None)
FIRST = JobSnapshot(
    pod_uid=POD.uid,
    boot=1,
    roster_epoch=2,
    roster_digest="d",
    members=(MEMBER,),
    progress=PROGRESS,
)


PROGRESSED = 99.0  # in the place of a delay


def linked() -> tuple[CoordinatorLink, list[float]]:
    """A link that has had the first snapshot, and the delays of reconciles asked for since."""
    delays: list[float] = []
    link = CoordinatorLink(
        pod=POD,
        credentials=cast("LinkCredentials", None),
        dialer=cast("PodDialer", None),
        notify=delays.append,
        progressed=lambda: delays.append(PROGRESSED),
        metrics=cast("LinkMetrics", None),
    )
    take(link, FIRST)
    delays.clear()
    return link, delays


def take(link: CoordinatorLink, snapshot: JobSnapshot) -> None:
    link._accept(snapshot)


@pytest.mark.parametrize(
    "changes",
    [
        {"boot": 2},
        {"roster_epoch": 3},
        {"roster_digest": "e"},
        {"members": ()},
        {"members": (replace(MEMBER, state=MemberState.GONE),)},
        {"members": (replace(MEMBER, reason="left"),)},
        {"progress": replace(PROGRESS, paused="no rollouts")},
        {"progress": replace(PROGRESS, warning="no checkpoint was written")},
        {"progress": replace(PROGRESS, learning=LearningReport(LearningState.LEARNING, 1, 20))},
        {"progress": replace(PROGRESS, max_steps=11)},
        {"finished": TrainingResult(step=10)},
        {"groups": (GroupReport("default", 2, None, rebuilds=1),)},
    ],
    ids=str,
)
def test_what_a_reconcile_depends_on_wakes_it_at_once(changes: dict[str, Any]) -> None:
    link, delays = linked()
    take(link, replace(FIRST, **changes))
    assert delays == [0.0]


def test_a_mere_step_waits() -> None:
    link, delays = linked()
    take(link, replace(FIRST, progress=replace(PROGRESS, step=1)))
    assert delays == [PROGRESSED]


def test_the_same_again_wakes_nothing() -> None:
    link, delays = linked()
    take(link, FIRST)
    assert delays == []


def test_a_link_serves_one_pod() -> None:
    link, _ = linked()
    assert link.serves(POD)
    assert not link.serves(replace(POD, uid="uid-9"))


def test_a_roster_is_held_when_epoch_and_digest_are_those_that_were_reported() -> None:
    link, _ = linked()
    link._connected = True
    member = RosterMember("uid-1", "p", "10.0.0.2", "pool")
    wanted = Roster("job", "default", 2, POD.uid, EpochCause.MEMBERS_JOINED, (member,))
    link.set_roster(wanted)
    assert link._roster_to_push() == wanted, "the same epoch with another digest"
    take(link, replace(FIRST, roster_digest=wanted.digest))
    assert link._roster_to_push() is None
    link.set_roster(replace(wanted, epoch=3))
    assert link._roster_to_push() == replace(wanted, epoch=3)
