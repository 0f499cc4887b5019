"""A member's join ends well only after the sender's, which so knows whether any has."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from rollcall_protocol.wire.ids import MemberId, SessionId
from rollcall_protocol.wire.messages import Seat
from rollcall_runtime.sync.engine import Role, encode_descriptor
from rollcall_runtime.sync.engines.common.threaded_engine import ThreadedSession
from rollcall_runtime.sync.engines.gloo import GlooEngine, GlooSettings
from rollcall_runtime.sync.errors import JoinFailedError, SyncError
from rollcall_runtime.sync.multi_sender import open_session
from rollcall_runtime.sync.rendezvous import SessionRendezvous
from rollcall_runtime.sync.rendezvous_connection import CONFIRMED

SIZE = 3
SHORT = 0.5


@dataclass(frozen=True, slots=True)
class Members:
    """The sender and two receivers of a gloo session, each with a thread."""

    sessions: list[ThreadedSession]
    threads: ThreadPoolExecutor

    def join(self, *ranks: int, timeout: float) -> list[SyncError | None]:
        """These members join, side by side; the error of each."""

        def attempt(rank: int) -> SyncError | None:
            try:
                self.sessions[rank].join(timeout=timeout)
            except SyncError as error:
                return error
            return None

        return list(self.threads.map(attempt, ranks))

    def enter(self, *, seconds: float) -> SessionRendezvous:
        """The connection to the session's table of a member that lies."""
        own = self.sessions[0]
        deadline = time.monotonic() + seconds
        return SessionRendezvous(
            session=own.name, seats=own.seats, deadline=deadline, sleep=time.sleep
        )


@pytest.fixture
def members() -> Iterator[Members]:
    engines, seats = [GlooEngine() for _ in range(SIZE)], []
    for rank, engine in enumerate(engines):
        member, address = MemberId(f"pod-{rank}", "b"), f"127.0.6.{rank + 1}"
        role = Role.RECEIVER if rank else Role.SENDER
        settings = GlooSettings(operation_timeout=1.0)
        descriptor = engine.open(member=member, address=address, role=role, settings=settings)
        seats.append(Seat(member, address, encode_descriptor(descriptor)))
    sessions = []
    for rank, engine in enumerate(engines):
        session = engine.open_session(group="g", session=SessionId(1, 1, 1), seats=seats, rank=rank)
        sessions.append(session)
    with ThreadPoolExecutor(SIZE) as threads:
        yield Members(sessions, threads)
        for session in sessions:
            session.abort()
    for engine in engines:
        engine.close()


def test_after_a_join_that_ended_well_the_sender_refutes_no_member(members: Members) -> None:
    assert members.join(0, 1, 2, timeout=10) == [None] * SIZE
    assert [session.give_up_join() for session in members.sessions] == [False] * SIZE


def test_while_a_seat_is_empty_no_join_ends_well_and_the_sender_knows_it(members: Members) -> None:
    assert all(members.join(0, 1, timeout=SHORT))
    assert members.sessions[0].give_up_join()
    assert not members.sessions[1].give_up_join(), "a receiver cannot know it"


def test_while_a_member_has_its_seat_and_does_not_connect_no_join_ends_well(
    members: Members,
) -> None:
    liar = members.enter(seconds=10)
    taken = members.threads.submit(liar.wait_for_all_seats, 2)
    assert all(members.join(0, 1, timeout=SHORT))
    taken.result(10)
    liar.close()
    assert members.sessions[0].give_up_join()


def test_a_sender_that_gave_up_never_confirms(members: Members) -> None:
    assert members.sessions[0].give_up_join()
    assert all(members.join(0, 1, 2, timeout=SHORT))


def test_only_the_senders_process_confirms(members: Members) -> None:
    liar = members.enter(seconds=10)
    with pytest.raises(JoinFailedError):
        liar.put(CONFIRMED, b"")
    liar.close()
    again = members.enter(seconds=SHORT)
    with pytest.raises(JoinFailedError, match="the sender's own join did not end"):
        again.wait_for_sender()
    again.close()


def test_each_of_several_senders_speaks_for_its_own_lane() -> None:
    engine = GlooEngine()
    seats = [Seat(MemberId(f"pod-{rank}", "b"), f"127.0.6.{rank + 11}", "") for rank in range(3)]
    engine.open(
        member=seats[1].member, address=seats[1].address, role=Role.SENDER, settings=GlooSettings()
    )
    session = SessionId(1, 1, 1)
    sender = open_session(engine, group="g", session=session, seats=seats, rank=1, senders=2)
    receiver = open_session(engine, group="g", session=session, seats=seats, rank=2, senders=2)
    assert (sender.give_up_join(), receiver.give_up_join()) == (True, False)
    for opened in (sender, receiver):
        opened.abort()
    engine.close()
