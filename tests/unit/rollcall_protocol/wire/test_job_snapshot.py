"""Numbers that no job has are refused before the operator writes them into a status."""

import json
from typing import Any

import pytest

from rollcall_protocol.wire.ids import MAX_VERSION_NUMBER, SessionId
from rollcall_protocol.wire.job_snapshot import (
    MAX_SECONDS,
    GroupReport,
    JobSnapshot,
    LostSessions,
    MemberReport,
    MemberState,
    SessionCause,
    SessionReport,
    TimeBound,
    TrainingProgress,
    TrainingResult,
)
from rollcall_protocol.wire.json_codec import CodecError
from rollcall_protocol.wire.messages import RepeatedMessages, dumps

SESSION = SessionReport(SessionId(1, 1, 1), SessionCause.NEW_ROSTER, 2, 0.5, time=1e9)
LOST = LostSessions(3, 60.0, TimeBound.STAGE, "p was silent")
GOOD = JobSnapshot(
    pod_uid="uid",
    boot=1,
    roster_epoch=1,
    roster_digest="d",
    members=(MemberReport("uid-1", "p", "pool", MemberState.IN_SYNC, 1, running=2),),
    progress=TrainingProgress(1, 10, 1, 0.5, steps_alike=1),
    finished=TrainingResult(10),
    groups=(GroupReport("default", 1, SESSION, 1, sessions=(SESSION,), lost_sessions=LOST),),
)
COUNTS = [
    "boot",
    "roster_epoch",
    "members.0.version",
    "members.0.running",
    "progress.step",
    "progress.max_steps",
    "progress.weight_version",
    "progress.steps_alike",
    "finished.step",
    "groups.0.epoch",
    "groups.0.rebuilds",
    "groups.0.session.members",
    "groups.0.lost_sessions.sessions",
]
SECONDS = ["groups.0.session.seconds", "groups.0.sessions.0.time", "groups.0.lost_sessions.seconds"]


def changed(path: str, value: Any) -> str:
    body = json.loads(dumps(GOOD))
    *way, last = path.split(".")
    inner = body
    for key in way:
        inner = inner[int(key) if key.isdigit() else key]
    assert last in inner
    inner[last] = value
    return json.dumps(body)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        *((path, value) for path in COUNTS for value in (-1, MAX_VERSION_NUMBER + 1)),
        *((path, v) for path in SECONDS for v in (-1.0, 2 * MAX_SECONDS, float("nan"))),
        *(("progress.rollout_reward", float(text)) for text in ("nan", "inf")),
    ],
)
def test_a_number_that_cannot_be_true_is_refused_by_its_name(path: str, value: Any) -> None:
    name = path.rsplit(".", 1)[-1]
    with pytest.raises(CodecError, match=f"{name} is "):
        RepeatedMessages(JobSnapshot).loads(changed(path, value))
    reports = RepeatedMessages(JobSnapshot)
    assert reports.loads(dumps(GOOD)) == GOOD
    with pytest.raises(CodecError, match=f"{name} is "):
        reports.loads(changed(path, value))


@pytest.mark.parametrize("path", COUNTS)
def test_the_bounds_themselves_are_taken(path: str) -> None:
    for value in (0, MAX_VERSION_NUMBER):
        RepeatedMessages(JobSnapshot).loads(changed(path, value))
