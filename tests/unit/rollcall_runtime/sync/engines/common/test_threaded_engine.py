"""What all engines' sessions have in common."""

import json

import pytest

from rollcall_protocol.wire.ids import MemberId, SessionId
from rollcall_protocol.wire.messages import Seat
from rollcall_runtime.sync.engine import Role, SyncSettings, encode_descriptor
from rollcall_runtime.sync.engines.gloo import GlooEngine
from rollcall_runtime.sync.errors import JoinFailedError

SENDER, RECEIVER = MemberId("pod-0", "boot"), MemberId("pod-1", "boot")


def test_members_that_use_different_engines_fail_at_once() -> None:
    engine = GlooEngine()
    descriptor = engine.open(
        member=SENDER, address="127.0.0.1", role=Role.SENDER, settings=SyncSettings()
    )
    other = json.dumps({"engine": "nccl"}).encode()
    seats = [
        Seat(SENDER, "127.0.0.1", encode_descriptor(descriptor)),
        Seat(RECEIVER, "127.0.0.2", encode_descriptor(other)),
    ]
    session = engine.open_session(group="job", session=SessionId(1, 1, 0), seats=seats, rank=0)
    with pytest.raises(
        JoinFailedError, match="uses engine 'nccl', this worker uses 'gloo'"
    ) as caught:
        session.join(timeout=30)
    assert caught.value.peer == RECEIVER
    engine.close()


def test_sessions_that_are_opened_on_a_busy_machine_have_longer_for_each_operation() -> None:
    engine = GlooEngine()
    settings = SyncSettings(operation_timeout=5.0)
    engine.open(member=SENDER, address="127.0.0.1", role=Role.SENDER, settings=settings)
    seats = [Seat(SENDER, "127.0.0.1", "")]
    opened = []
    for attempt, stretch in enumerate((1.0, 3.0, 1.0)):
        engine.stretch = stretch
        session = SessionId(1, 1, attempt)
        opened.append(engine.open_session(group="job", session=session, seats=seats, rank=0))
    assert [session.settings.operation_timeout for session in opened] == [5.0, 15.0, 5.0]
    engine.close()
