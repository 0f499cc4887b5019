"""Several senders, each with a part of the weights, in one process."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import pytest

from rollcall_protocol.wire.ids import MemberId, SessionId
from rollcall_protocol.wire.messages import Seat
from rollcall_protocol.wire.weight_manifest import WeightManifest
from rollcall_runtime.sync.digests import digest_of
from rollcall_runtime.sync.engine import Role, SyncSession, encode_descriptor
from rollcall_runtime.sync.engines.gloo import GlooEngine, GlooSettings
from rollcall_runtime.sync.errors import AbortedError, DigestMismatchError, SyncError
from rollcall_runtime.sync.memory.buffers import HostBuffer
from rollcall_runtime.sync.multi_sender import open_session
from tests.unit.rollcall_protocol.wire.made_up_digests import made_up

SENDERS, RECEIVERS = 2, 2
PARTS = (700, 1300)


@dataclass(frozen=True, slots=True)
class Group:
    """Sessions by rank, and threads to use them all at once."""

    sessions: list[SyncSession]
    threads: ThreadPoolExecutor


@pytest.fixture
def group() -> Iterator[Group]:
    engines = [GlooEngine() for _ in range(SENDERS + RECEIVERS)]
    seats = []
    for index, engine in enumerate(engines):
        member, address = MemberId(f"pod-{index}", "b"), f"127.0.5.{index + 1}"
        role = Role.SENDER if index < SENDERS else Role.RECEIVER
        settings = GlooSettings(operation_timeout=2.0)
        descriptor = engine.open(member=member, address=address, role=role, settings=settings)
        seats.append(Seat(member, address, encode_descriptor(descriptor)))
    session = SessionId(1, 1, 1)
    sessions = [
        open_session(engine, group="g", session=session, seats=seats, rank=rank, senders=SENDERS)
        for rank, engine in enumerate(engines)
    ]
    with ThreadPoolExecutor(len(engines)) as threads:
        for call in [threads.submit(session.join, timeout=5.0) for session in sessions]:
            call.result()
        yield Group(sessions, threads)
        for opened in sessions:
            opened.abort()
    for engine in engines:
        engine.close()


def filled(size: int, seed: int) -> HostBuffer:
    buffer = HostBuffer(size)
    buffer.memory[:] = bytes((seed * 31 + 7 * i) % 256 for i in range(size))
    return buffer


def described(parts: list[HostBuffer]) -> WeightManifest:
    empty = WeightManifest((), sum(PARTS), 512, made_up(0) * 5, PARTS)
    whole = b"".join(bytes(part.memory) for part in parts)
    return replace(
        empty, digests=tuple(digest_of(whole[start:end]) for start, end in empty.buckets())
    )


def test_each_receiver_gets_every_senders_part(group: Group) -> None:
    parts = [filled(size, seed) for seed, size in enumerate(PARTS)]
    manifest = described(parts)
    targets = [HostBuffer(manifest.total_bytes) for _ in range(RECEIVERS)]
    calls = [
        group.threads.submit(session.publish, part, manifest, timeout=5.0)
        for session, part in zip(group.sessions, parts, strict=False)
    ] + [
        group.threads.submit(session.receive, target, manifest, timeout=5.0)
        for session, target in zip(group.sessions[SENDERS:], targets, strict=True)
    ]
    for call in calls:
        call.result()
    whole = b"".join(bytes(part.memory) for part in parts)
    assert [bytes(target.memory) for target in targets] == [whole] * RECEIVERS


def test_one_bad_part_spoils_the_whole(group: Group) -> None:
    parts = [filled(size, seed) for seed, size in enumerate(PARTS)]
    manifest = described(parts)
    parts[1].memory[3] ^= 1
    sending = [
        group.threads.submit(session.publish, part, manifest, timeout=5.0)
        for session, part in zip(group.sessions, parts, strict=False)
    ]
    receiving = [
        group.threads.submit(
            session.receive, HostBuffer(manifest.total_bytes), manifest, timeout=5.0
        )
        for session in group.sessions[SENDERS:]
    ]
    for call in receiving:
        assert isinstance(call.exception(), DigestMismatchError)
    for call in sending:
        assert isinstance(call.exception(), (SyncError, type(None)))


def test_an_abort_ends_all_parts(group: Group) -> None:
    manifest = described([filled(size, seed) for seed, size in enumerate(PARTS)])
    waiting = group.threads.submit(
        group.sessions[-1].receive, HostBuffer(manifest.total_bytes), manifest, timeout=5.0
    )
    group.sessions[-1].abort()
    assert isinstance(waiting.exception(1.0), AbortedError)


def test_a_manifest_of_other_parts_is_refused(group: Group) -> None:
    manifest = WeightManifest((), 512, 512, made_up(0))
    with pytest.raises(DigestMismatchError, match="1 parts for 2 senders"):
        group.sessions[-1].receive(HostBuffer(512), manifest, timeout=1.0)
