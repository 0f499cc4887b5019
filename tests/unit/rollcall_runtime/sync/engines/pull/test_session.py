"""Engines whose receivers read from their neighbours' memory."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from rollcall_runtime.sync.engines.pull.engine import PullSettings
from rollcall_runtime.sync.engines.pull.topology import Topology, upstream
from rollcall_runtime.sync.errors import (
    DigestMismatchError,
    SyncError,
    TimedOutError,
    TransferFailedError,
)
from tests.unit.rollcall_runtime.sync.copying_peers import (
    BUCKET,
    BUCKETS,
    CopyEngine,
    Local,
    abort,
    eventually,
)

GROUP = "job/default"
MIB = 1 << 20
SHORT = PullSettings(operation_bytes=BUCKET, operation_timeout=2.0, in_flight=1, drain_timeout=0.05)
CHAIN = replace(SHORT, topology=Topology.CHAIN.value)


@pytest.fixture
def chain() -> Iterator[Local]:
    """A sender and three receivers in a line."""
    party = Local(CopyEngine, 3, CHAIN)
    yield party
    party.close()


@pytest.mark.parametrize("topology", [Topology.STAR, Topology.TREE, Topology.CHAIN])
def test_each_receiver_reads_from_the_one_above_it(topology: Topology) -> None:
    party = Local(CopyEngine, 5, replace(SHORT, topology=topology.value))
    sessions = party.join(range(6))
    party.transfer(sessions, party.fill(1))
    for rank in range(1, 6):
        assert party.engines[rank].reached == [f"pod-{upstream(rank, topology)}"]
    abort(sessions)
    party.close()


def test_a_chain_passes_on_what_is_verified_while_the_rest_arrives(chain: Local) -> None:
    first, second, third = chain.engines[1:]
    first.allowed = 2  # of six buckets
    sessions = chain.join(range(4))
    moving = chain.start(sessions, chain.fill(2))
    assert eventually(lambda: third.ended == 2)
    assert (first.ended, second.ended) == (2, 2), (
        "all have what the first has, which lacks the rest"
    )
    first.allowed = 1 << 30
    for future in moving.values():
        future.result(5)
    assert chain.buffers[3].memory == chain.buffers[0].memory
    abort(sessions)


def test_what_is_damaged_on_its_way_is_not_passed_on(chain: Local) -> None:
    manifest = chain.fill(3)
    chain.buffers[0].memory[BUCKET] ^= 1
    sessions = chain.join(range(4))
    moving = chain.start(sessions, manifest, timeout=3.0)
    with pytest.raises(SyncError, match=r"wrong digest in buckets \[1\]"):
        moving[1].result(5)
    abort(sessions)


def test_a_chain_closes_over_a_member_that_left(chain: Local) -> None:
    before = chain.join(range(4))
    chain.transfer(before, chain.fill(4))
    abort(before)
    after = chain.join([0, 1, 3])
    chain.transfer(after, chain.fill(5))
    assert chain.engines[3].reached == ["pod-2", "pod-1"]
    abort(after)


def test_memory_is_registered_only_while_a_version_is_sent(chain: Local) -> None:
    sessions = chain.join(range(4))
    for number in (1, 2):
        chain.transfer(sessions, chain.fill(number))
        for engine, buffer in zip(chain.engines, chain.buffers, strict=True):
            assert engine.registrations == engine.unregistrations == [buffer.address] * number
    abort(sessions)


def test_memory_is_not_registered_any_more_after_a_transfer_that_failed(chain: Local) -> None:
    sessions = chain.join(range(4))
    for engine in chain.engines:
        engine.failing = True
    for moving in chain.start(sessions, chain.fill(1), timeout=1.0).values():
        with pytest.raises(SyncError):
            moving.result(5)
    abort(sessions)
    for engine in chain.engines:
        assert eventually(lambda e=engine: e.registrations == e.unregistrations)


def test_memory_stays_registered_with_an_engine_that_keeps_it_so(
    chain: Local, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CopyEngine, "keeps_registered", True)
    sessions = chain.join(range(4))
    for number in (1, 2):
        chain.transfer(sessions, chain.fill(number))
    for engine, buffer in zip(chain.engines, chain.buffers, strict=True):
        assert (engine.registrations, engine.unregistrations) == ([buffer.address], [])
    abort(sessions)


def test_what_a_peer_wrote_after_the_check_is_noticed_and_accuses_no_member(chain: Local) -> None:
    sessions, manifest = chain.join(range(4)), chain.fill(6)

    def overwrite() -> None:
        chain.buffers[2].memory[2 * BUCKET] ^= 1

    chain.engines[2].on_unregister = overwrite
    moving = chain.start(sessions, manifest)
    with pytest.raises(DigestMismatchError, match=r"wrong digest in buckets \[2\]") as caught:
        moving[2].result(5)
    assert caught.value.peer is None, "any client that connects may have done it"
    moving[3].result(5)
    abort(sessions)


def test_the_member_that_passed_on_wrong_weights_is_named(chain: Local) -> None:
    sessions, manifest = chain.join(range(4)), chain.fill(7)
    chain.engines[3].allowed = 0
    moving = chain.start(sessions, manifest)
    moving[1].result(5)
    assert eventually(lambda: chain.engines[2].ended == BUCKETS)
    chain.buffers[2].memory[BUCKET] ^= 1
    chain.engines[3].allowed = 1 << 30
    with pytest.raises(DigestMismatchError, match="wrong digest") as caught:
        moving[3].result(5)
    assert caught.value.peer == chain.seats[2].member
    abort(sessions)


def test_an_engine_keeps_the_peers_of_its_sessions_alone(chain: Local) -> None:
    before = chain.join(range(4))
    assert chain.engines[1].kept[-1] == {"pod-0", "pod-1", "pod-2", "pod-3"}
    beside = chain.join([0, 1, 2])  # of another group, say
    abort(before)
    after = chain.join([0, 1])
    assert chain.engines[1].kept[-1] == {"pod-0", "pod-1", "pod-2"}
    abort(beside)
    abort(after)


def test_a_chain_may_take_longer_than_one_operation_may() -> None:
    party = Local(CopyEngine, 4, replace(CHAIN, operation_timeout=0.25))
    for engine in party.engines:
        engine.seconds = 0.1
    sessions = party.join(range(5))
    party.transfer(sessions, party.fill(6))  # the last one begins after 0.4 s
    abort(sessions)
    party.close()


def test_the_sender_names_the_first_member_that_gets_nothing_done() -> None:
    party = Local(CopyEngine, 3, replace(CHAIN, operation_timeout=0.3))
    party.engines[2].allowed = 1
    sessions = party.join(range(4))
    moving = party.start(sessions, party.fill(7))
    with pytest.raises(TimedOutError) as caught:
        moving[0].result(5)
    assert caught.value.peer == party.seats[2].member
    abort(sessions)
    party.close()


@pytest.mark.parametrize("well", [True, False])
def test_a_stuck_read_holds_its_buffer_until_it_ends_and_no_longer(
    chain: Local, *, well: bool
) -> None:
    engine, buffer = chain.engines[1], chain.buffers[1]
    engine.allowed = 1
    sessions = chain.join([0, 1])
    moving = chain.start(sessions, chain.fill(8))
    assert eventually(lambda: engine.ended == 1)
    abort(sessions)
    with pytest.raises(SyncError):
        moving[1].result(1)
    assert (buffer.in_use, engine.abandoned) == (True, 1)
    if well:
        engine.allowed = 1 << 30
    else:
        engine.failing = True
    assert engine.abandoned == 0
    assert not buffer.in_use


def test_a_read_that_ended_is_let_go_of_when_the_next_session_forms(chain: Local) -> None:
    engine, buffer = chain.engines[1], chain.buffers[1]
    engine.allowed = 1
    sessions = chain.join([0, 1])
    chain.start(sessions, chain.fill(9))
    assert eventually(lambda: engine.ended == 1)
    abort(sessions)
    engine.allowed = 1 << 30
    before = buffer.in_use
    after = chain.join([0, 1])
    assert (before, buffer.in_use) == (True, False)
    abort(after)


def test_a_failed_read_names_its_source(chain: Local) -> None:
    chain.engines[2].failing = True
    sessions = chain.join(range(4))
    with pytest.raises(TransferFailedError) as caught:
        chain.start(sessions, chain.fill(10))[2].result(5)
    assert caught.value.peer == chain.seats[1].member
    abort(sessions)
