"""Every engine between real processes: what arrives, and what is refused."""

from dataclasses import replace

import pytest

from rollcall_runtime.sync.errors import (
    AbortedError,
    DigestMismatchError,
    JoinFailedError,
    SyncError,
    TransferFailedError,
)
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


def test_every_tensor_arrives_byte_for_byte(trio: list[MemberProcess]) -> None:
    sender, *receivers = trio
    join(trio)
    for number, bucket_bytes in ((1, MIB), (2, 1000), (3, 64 * MIB)):
        manifest = sender.do("snapshot", seed=number, megabytes=3, bucket_bytes=bucket_bytes)
        futures = [
            member.start("receive", group=GROUP, number=number, manifest=manifest, timeout=30)
            for member in receivers
        ]
        sender.do("publish", group=GROUP, timeout=30)
        for member, future in zip(receivers, futures, strict=True):
            done(future)
            assert member.do("commit", number=number) == sender.do("digests")
    abort(trio)


def test_a_session_of_one_is_trivial(trio: list[MemberProcess]) -> None:
    sender = trio[0]
    join([sender])
    sender.do("snapshot", seed=1, megabytes=1, bucket_bytes=MIB)
    sender.do("publish", group=GROUP, timeout=1)
    abort([sender])
    with pytest.raises(AbortedError):
        sender.do("publish", group=GROUP, timeout=1)


def test_a_manifest_with_another_digest_is_refused(trio: list[MemberProcess]) -> None:
    sender, receiver, other = trio
    manifest = sender.do("snapshot", seed=10, megabytes=2, bucket_bytes=MIB)
    join(trio)
    publish(trio, number=10, manifest=manifest)
    served = receiver.do("served")
    wrong = replace(manifest, digests=(manifest.digests[1], *manifest.digests[1:]))
    futures = [
        receiver.start("receive", group=GROUP, number=11, manifest=wrong, timeout=5),
        other.start("receive", group=GROUP, number=11, manifest=manifest, timeout=5),
    ]
    sender.do("publish", group=GROUP, timeout=5)
    with pytest.raises(DigestMismatchError, match=r"buckets \[0\] of 3"):
        done(futures[0])
    done(futures[1])
    assert receiver.do("served") == served
    with pytest.raises(SyncError, match="is not staged"):
        receiver.do("commit", number=11)
    assert receiver.do("served") == served
    abort(trio)


def test_bytes_that_changed_after_their_digest_are_refused(trio: list[MemberProcess]) -> None:
    sender, receiver, _ = trio
    manifest = sender.do("snapshot", seed=12, megabytes=2, bucket_bytes=MIB)
    sender.do("corrupt")
    join([sender, receiver])
    future = receiver.start("receive", group=GROUP, number=12, manifest=manifest, timeout=5)
    sender.do("publish", group=GROUP, timeout=5)
    with pytest.raises(DigestMismatchError):
        done(future)
    abort([sender, receiver])


def test_a_manifest_of_another_size_is_refused_at_once(trio: list[MemberProcess]) -> None:
    sender, receiver, _ = trio
    join([sender, receiver])
    wrong = sender.do("snapshot", seed=13, megabytes=1, bucket_bytes=MIB)
    sender.do("snapshot", seed=13, megabytes=40, bucket_bytes=16 * MIB)
    future = receiver.start("receive", group=GROUP, number=13, manifest=wrong, timeout=5)
    sending = sender.start("publish", group=GROUP, timeout=5)
    with pytest.raises(DigestMismatchError, match="announces"):
        done(future)
    abort([sender, receiver])
    assert isinstance(sending.result(5).error, (SyncError, type(None)))
    settled(sender, "abandoned", 0)


def test_two_groups_at_once_do_not_mix(
    processes: MemberProcesses, trio: list[MemberProcess]
) -> None:
    sender, first, second = trio
    manifest = sender.do("snapshot", seed=15, megabytes=8, bucket_bytes=MIB)
    session = new_session()
    join([sender, first], group="job/a", session=session)
    join([sender, second], group="job/b", session=session)
    waiting = [
        first.start("receive", group="job/a", number=15, manifest=manifest, timeout=5),
        second.start("receive", group="job/b", number=15, manifest=manifest, timeout=5),
    ]
    sending = [sender.start("publish", group=group, timeout=5) for group in ("job/a", "job/b")]
    for future in [*waiting, *sending]:
        done(future)
    assert first.do("commit", number=15) == second.do("commit", number=15) == sender.do("digests")
    abort([sender, first], group="job/a")
    abort([sender, second], group="job/b")


def test_an_unjoined_session_sends_nothing(trio: list[MemberProcess]) -> None:
    sender, receiver, _ = trio
    sender.do("snapshot", seed=22, megabytes=1, bucket_bytes=MIB)
    seats = (sender.seat, receiver.seat)
    joining = sender.start("join", group=GROUP, session=new_session(), seats=seats, timeout=0.1)
    with pytest.raises(JoinFailedError):
        done(joining)
    with pytest.raises(TransferFailedError, match="failed before"):
        sender.do("publish", group=GROUP, timeout=1)
    abort([sender])
