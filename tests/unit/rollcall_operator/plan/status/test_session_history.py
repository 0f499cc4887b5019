"""Sessions are kept in status, none is lost between two reconciles, and each is an event once."""

from dataclasses import replace

import pytest

from rollcall_operator.plan.status.session_history import append_sessions
from rollcall_protocol.wire.ids import SessionId
from rollcall_protocol.wire.job_snapshot import KEPT_SESSIONS, SessionCause, SessionReport
from tests.unit.rollcall_operator.plan.simulator import START, JobSimulator, writes_anything


def formed(
    attempt: int, cause: SessionCause = SessionCause.MEMBER_LOST, *, boot: int = 1
) -> SessionReport:
    detail = "" if cause is SessionCause.NEW_ROSTER else "cpu-0: HeartbeatMissed: silent"
    return SessionReport(SessionId(1, boot, attempt), cause, 3, 0.125, detail, START + attempt)


FIRST = formed(1, SessionCause.NEW_ROSTER)


@pytest.fixture
def running() -> JobSimulator:
    simulator = JobSimulator()
    simulator.to_running()
    report(simulator, FIRST)
    simulator.converge(60)
    return simulator


def report(simulator: JobSimulator, *sessions: SessionReport) -> None:
    """The coordinator has formed these, the last one being in use."""
    assert simulator.snapshot is not None
    (group,) = simulator.snapshot.groups
    group = replace(group, session=sessions[-1], sessions=sessions[-KEPT_SESSIONS:])
    simulator.snapshot = replace(simulator.snapshot, groups=(group,))


def kept(simulator: JobSimulator) -> list[str]:
    return [record["session"] for record in simulator.status["syncGroups"][0]["sessions"]]


def unexpected_sessions(simulator: JobSimulator) -> list[str]:
    return [n.message for p in simulator.plans for n in p.events if n.reason == "SessionRebuilt"]


def test_a_session_that_followed_a_loss_is_kept_and_an_event(running: JobSimulator) -> None:
    report(running, FIRST, formed(2))
    running.converge(5)
    assert running.status["syncGroups"][0]["sessions"][-1] == {
        "session": "1.1.2",
        "cause": "MemberLost",
        "message": "cpu-0: HeartbeatMissed: silent",
        "members": 3,
        "seconds": "0.125",
        "time": "2027-01-15T08:00:02.000000Z",
    }
    assert unexpected_sessions(running) == [
        (
            "sync group default: session 1.1.2 was formed with the trainer and 2 rollouts in "
            "0.125 s (MemberLost, cpu-0: HeartbeatMissed: silent)"
        )
    ]


def test_a_session_that_only_followed_its_roster_is_kept_and_no_event(
    running: JobSimulator,
) -> None:
    assert kept(running) == ["1.1.1"]
    assert unexpected_sessions(running) == []


def test_all_sessions_between_two_reconciles_are_kept(running: JobSimulator) -> None:
    report(running, FIRST, *(formed(attempt) for attempt in range(2, 8)))
    running.converge(5)
    assert kept(running) == [f"1.1.{attempt}" for attempt in range(1, 8)]
    assert unexpected_sessions(running)[0] == (
        "sync group default: 6 sessions were formed; events follow for the latest 3"
    )
    latest = [message.split(" ")[4] for message in unexpected_sessions(running)[1:]]
    assert latest == ["1.1.5", "1.1.6", "1.1.7"]


def test_the_last_twenty_are_kept_across_coordinators(running: JobSimulator) -> None:
    report(running, FIRST, *(formed(attempt) for attempt in range(2, 19)))
    running.converge(5)
    report(running, *(formed(attempt, boot=2) for attempt in range(1, 6)))
    running.converge(5)
    expected = [f"1.1.{n}" for n in range(4, 19)] + [f"1.2.{n}" for n in range(1, 6)]
    assert kept(running) == expected
    assert len(expected) == 20


def test_an_operator_that_restarts_reports_no_session_twice(running: JobSimulator) -> None:
    report(running, FIRST, formed(2))
    running.converge(5)
    before = unexpected_sessions(running)
    running.memory = type(running.memory)()
    running.converge(60)
    assert unexpected_sessions(running) == before


def test_the_same_sessions_again_are_no_write(running: JobSimulator) -> None:
    report(running, FIRST, formed(2))
    running.converge(5)
    assert not writes_anything(running.reconcile(60))


def test_news_waits_a_second_at_most_however_often_sessions_change(running: JobSimulator) -> None:
    running.converge(60)
    writes = running.writes["job status"]
    for tick in range(20):
        report(running, FIRST, *(formed(attempt) for attempt in range(2, 3 + tick)))
        plan = running.reconcile(0.2)
        assert plan.requeue_after is None or plan.requeue_after <= 1
    assert running.writes["job status"] - writes <= 5


def test_attempts_are_ordered_as_numbers() -> None:
    old = append_sessions((), [formed(9)])
    assert [r.session for r in append_sessions(old, [formed(9), formed(10)])] == ["1.1.9", "1.1.10"]
