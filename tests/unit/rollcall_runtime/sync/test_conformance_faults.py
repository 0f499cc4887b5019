"""Every engine when members die, hang, stay away or come too late."""

import signal
import time

import pytest

from rollcall_protocol.wire.ids import SessionId
from rollcall_runtime.sync.engine import Role
from rollcall_runtime.sync.errors import (
    AbortedError,
    ExhaustedError,
    JoinFailedError,
    SyncError,
    TimedOutError,
    TransferFailedError,
)
from tests.unit.rollcall_runtime.sync.engine_cases import Case
from tests.unit.rollcall_runtime.sync.faulty_members import at_rest
from tests.unit.rollcall_runtime.sync.member_processes import (
    MemberProcess,
    MemberProcesses,
    abort,
    done,
    join,
    new_session,
    publish,
    settled,
)

GROUP = "job/default"
MIB = 1 << 20


def test_a_failed_session_stays_failed(trio: list[MemberProcess]) -> None:
    sender, receiver, _ = trio
    manifest = sender.do("snapshot", seed=14, megabytes=1, bucket_bytes=MIB)
    join([sender, receiver])
    late = receiver.start("receive", group=GROUP, number=14, manifest=manifest, timeout=0.2)
    with pytest.raises(TimedOutError):
        done(late)
    with pytest.raises(SyncError):
        receiver.do("receive", group=GROUP, number=14, manifest=manifest, timeout=0.5)
    abort([sender, receiver])
    settled(receiver, "abandoned", 0)


def test_an_empty_seat_is_named(trio: list[MemberProcess]) -> None:
    sender, present, absent = trio
    seats = tuple(member.seat for member in trio)
    kwargs = {"group": GROUP, "session": new_session(), "seats": seats, "timeout": 0.3}
    for future in [member.start("join", **kwargs) for member in (sender, present)]:
        reply = future.result(5)
        assert isinstance(reply.error, JoinFailedError)
        assert reply.error.peer == absent.id
        assert reply.ended - reply.began < 0.6
    abort([sender, present])


def test_the_join_of_an_older_session_matches_nothing_newer(trio: list[MemberProcess]) -> None:
    sender, receiver, late = trio
    seats = tuple(member.seat for member in trio)
    old, new = SessionId(900, 1, 0), SessionId(900, 1, 1)
    waiting = late.start("join", group=GROUP, session=old, seats=seats, timeout=0.5)
    join([sender, receiver], session=new)
    manifest = sender.do("snapshot", seed=16, megabytes=1, bucket_bytes=MIB)
    publish([sender, receiver], number=16, manifest=manifest)
    with pytest.raises(JoinFailedError):
        done(waiting)
    abort(trio)


@pytest.mark.alone
def test_abort_ends_a_join_at_once(trio: list[MemberProcess]) -> None:
    sender, receiver, _ = trio
    seats = (sender.seat, receiver.seat)
    joining = sender.start("join", group=GROUP, session=new_session(), seats=seats, timeout=10)
    time.sleep(0.1)
    aborted = done(sender.start("abort", group=GROUP))
    reply = joining.result(5)
    assert isinstance(reply.error, AbortedError)
    assert reply.ended - aborted.began < 0.1
    settled(sender, "abandoned", 0, seconds=0.5)


@pytest.mark.slow
def test_rebuilding_a_hundred_times_leaves_nothing_behind(trio: list[MemberProcess]) -> None:
    sender = trio[0]
    manifest = sender.do("snapshot", seed=17, megabytes=1, bucket_bytes=MIB)
    before: list[dict[str, int]] = []
    for turn in range(100):
        join(trio)
        publish(trio, number=100 + turn, manifest=manifest)
        abort(trio)
        if turn == 9:
            before = [at_rest(member) for member in trio]
    after = [at_rest(member) for member in trio]
    # Less is no fault: what a member was still closing at the tenth turn may be closed now.
    grown = [
        {name: (old[name], new[name]) for name in old if new[name] > old[name]}
        for old, new in zip(before, after, strict=True)
    ]
    assert grown == [{}, {}, {}]


@pytest.mark.alone
def test_an_aborted_publish_ends_at_once_and_a_stopped_receiver_costs_no_more(
    case: Case, processes: MemberProcesses, trio: list[MemberProcess]
) -> None:
    sender, receiver, _ = trio
    stopped = processes.open(Role.RECEIVER)
    everyone = [sender, receiver, stopped]
    manifest = sender.do("snapshot", seed=18, megabytes=64, bucket_bytes=8 * MIB)
    join(everyone)
    stopped.signal(signal.SIGSTOP)
    receiving = receiver.start("receive", group=GROUP, number=18, manifest=manifest, timeout=2)
    sending = sender.start("publish", group=GROUP, timeout=2)
    time.sleep(0.3)
    assert not (case.sender_waits and sending.done())
    for member, future in ((sender, sending), (receiver, receiving)):
        aborted = done(member.start("abort", group=GROUP))
        reply = future.result(5)
        if reply.error is None:
            assert member is receiver or not case.sender_waits, (
                "a peer may have given it everything before"
            )
            continue
        if member is receiver and reply.ended < aborted.began:
            assert isinstance(reply.error, TransferFailedError), "the sender's end caused it"
            continue
        assert isinstance(reply.error, AbortedError)
        assert aborted.ended - aborted.began < 0.05
        assert reply.ended - aborted.began < 0.1
    assert sender.do("counts")["abandoned"] <= 1
    join([sender, receiver])
    publish([sender, receiver], number=18, manifest=manifest)
    abort([sender, receiver])
    settled(sender, "abandoned", 0)
    settled(receiver, "abandoned", 0)


@pytest.mark.parametrize("die_after", [1, 4])
def test_a_receiver_killed_while_it_receives_is_survived(
    processes: MemberProcesses, trio: list[MemberProcess], die_after: int
) -> None:
    sender, receiver, _ = trio
    victim = processes.open(Role.RECEIVER)
    everyone = [sender, receiver, victim]
    manifest = sender.do("snapshot", seed=19 + die_after, megabytes=64, bucket_bytes=8 * MIB)
    join(everyone)
    before = receiver.do("served")
    kwargs = {"group": GROUP, "number": 19, "manifest": manifest, "timeout": 10}
    doomed = [
        receiver.start("receive", **kwargs),
        victim.start("receive_and_die", die_after=die_after, **kwargs),
    ]
    sending = sender.start("publish", group=GROUP, timeout=10)
    assert victim.dead.wait(5)
    assert receiver.do("served") == before
    abort([sender, receiver])
    assert isinstance(doomed[0].result(5).error, (SyncError, type(None)))
    assert isinstance(sending.result(5).error, (SyncError, type(None)))
    join([sender, receiver])
    publish([sender, receiver], number=19, manifest=manifest)
    assert receiver.do("served")[0].number == 19
    abort([sender, receiver])
    settled(sender, "abandoned", 0)
    settled(receiver, "abandoned", 0)
    settled(receiver, "in_use", 1)  # only what is served


def test_a_receiver_killed_before_it_joins_is_named(
    processes: MemberProcesses, trio: list[MemberProcess]
) -> None:
    sender, receiver, _ = trio
    victim = processes.open(Role.RECEIVER)
    seats = (sender.seat, receiver.seat, victim.seat)
    victim.close()
    kwargs = {"group": GROUP, "session": new_session(), "seats": seats, "timeout": 0.3}
    for future in [member.start("join", **kwargs) for member in (sender, receiver)]:
        error = future.result(5).error
        assert isinstance(error, JoinFailedError)
        assert error.peer == victim.id
    abort([sender, receiver])


def test_a_receiver_killed_after_it_received_changes_nothing_for_others(
    processes: MemberProcesses, trio: list[MemberProcess]
) -> None:
    sender, receiver, _ = trio
    victim = processes.open(Role.RECEIVER)
    manifest = sender.do("snapshot", seed=25, megabytes=8, bucket_bytes=MIB)
    join([sender, receiver, victim])
    kwargs = {"group": GROUP, "number": 25, "manifest": manifest, "timeout": 5}
    futures = [member.start("receive", **kwargs) for member in (receiver, victim)]
    sender.do("publish", group=GROUP, timeout=5)
    for future in futures:
        done(future)
    victim.close()
    assert receiver.do("commit", number=25) == sender.do("digests")
    abort([sender, receiver])
    join([sender, receiver])
    publish([sender, receiver], number=26, manifest=manifest)
    abort([sender, receiver])


def test_a_receiver_without_memory_keeps_what_it_serves(
    processes: MemberProcesses, trio: list[MemberProcess]
) -> None:
    sender, receiver, _ = trio
    poor = processes.open(Role.RECEIVER)
    manifest = sender.do("snapshot", seed=27, megabytes=1, bucket_bytes=MIB)
    everyone = [sender, receiver, poor]
    join(everyone)
    publish(everyone, number=27, manifest=manifest)
    served = poor.do("served")
    poor.do("starve", spare=48 * MIB)
    manifest = sender.do("snapshot", seed=28, megabytes=99, bucket_bytes=8 * MIB)
    kwargs = {"group": GROUP, "number": 28, "manifest": manifest, "timeout": 10}
    futures = [member.start("receive", **kwargs) for member in (poor, receiver)]
    sending = sender.start("publish", group=GROUP, timeout=10)
    with pytest.raises(ExhaustedError, match="cannot allocate"):
        done(futures[0])
    abort(everyone)
    assert isinstance(sending.result(5).error, (SyncError, type(None)))
    assert isinstance(futures[1].result(5).error, (SyncError, type(None)))
    assert poor.do("served") == served
    join([sender, receiver])
    publish([sender, receiver], number=28, manifest=manifest)
    abort([sender, receiver])


def test_a_late_joiner_is_waited_for(trio: list[MemberProcess]) -> None:
    sender, receiver, late = trio
    seats = tuple(member.seat for member in trio)
    kwargs = {"group": GROUP, "session": new_session(), "seats": seats, "timeout": 5}
    joining = [member.start("join", **kwargs) for member in (sender, receiver)]
    time.sleep(0.4)
    for future in [*joining, late.start("join", **kwargs)]:
        done(future)
    manifest = sender.do("snapshot", seed=29, megabytes=1, bucket_bytes=MIB)
    publish(trio, number=29, manifest=manifest)
    abort(trio)


@pytest.mark.parametrize("die_after", [1, 4])
def test_a_killed_sender_leaves_receivers_free_for_its_successor(
    processes: MemberProcesses, trio: list[MemberProcess], die_after: int
) -> None:
    sender = processes.open(Role.SENDER)
    receivers = trio[1:]
    manifest = sender.do("snapshot", seed=20, megabytes=64, bucket_bytes=8 * MIB)
    join([sender, *receivers])
    before = [member.do("served") for member in receivers]
    kwargs = {"group": GROUP, "number": 20, "manifest": manifest, "timeout": 10}
    receiving = [member.start("receive", **kwargs) for member in receivers]
    sender.start("publish_and_die", group=GROUP, timeout=10, die_after=die_after)
    assert sender.dead.wait(5)
    abort(receivers)
    for future in receiving:
        assert isinstance(future.result(5).error, SyncError)
    assert [member.do("served") for member in receivers] == before
    orphan = receivers[0].start(
        "join",
        group=GROUP,
        session=new_session(),
        seats=(sender.seat, receivers[0].seat),
        timeout=0.3,
    )
    reply = orphan.result(5)
    assert isinstance(reply.error, JoinFailedError)
    assert reply.error.peer == sender.id
    abort(receivers[:1])
    manifest = trio[0].do("snapshot", seed=20, megabytes=1, bucket_bytes=MIB)
    join(trio)
    publish(trio, number=20, manifest=manifest)
    abort(trio)
    for member in receivers:
        settled(member, "abandoned", 0)


def test_a_dead_source_is_named_and_nothing_keeps_what_was_read(
    case: Case, processes: MemberProcesses, trio: list[MemberProcess]
) -> None:
    if not case.names_dead_sources:
        pytest.skip("not an engine of reads")
    sender = processes.open(Role.SENDER)
    receivers = trio[1:]
    before = [member.do("counts")["in_use"] for member in receivers]
    manifest = sender.do("snapshot", seed=40, megabytes=64, bucket_bytes=8 * MIB)
    join([sender, *receivers])
    kwargs = {"group": GROUP, "number": 40, "manifest": manifest, "timeout": 10}
    receiving = [member.start("receive", **kwargs) for member in receivers]
    sender.start("publish_and_die", group=GROUP, timeout=10, die_after=4)
    assert sender.dead.wait(5)
    for future in receiving:
        error = future.result(5).error
        assert isinstance(error, SyncError)
        assert error.peer == sender.id
    abort(receivers)
    for member, pinned in zip(receivers, before, strict=True):
        settled(member, "abandoned", 0)
        settled(member, "in_use", pinned, seconds=1)  # and not when memory is next collected
