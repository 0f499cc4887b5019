"""Members of a session that get wrong weights from one another, with a coordinator and streams."""

from pathlib import Path

from rollcall_protocol.wire.ids import MemberId
from rollcall_protocol.wire.job_snapshot import MemberState, SuspicionCause
from rollcall_runtime.sync.errors import DigestMismatchError
from tests.unit.rollcall_runtime.coordinator.fake_group import (
    Group,
    Worker,
    eventually,
    with_bounds,
)


def reads_wrong_weights(worker: Worker, source: MemberId) -> None:
    """From now on what it receives from `source` has wrong digests."""

    async def refuse(*_: object) -> None:
        raise DigestMismatchError("wrong digest in buckets [0] of 1", peer=source)

    setattr(worker, "transfer", refuse)  # noqa: B010 - mypy forbids to assign a method


async def test_reader_and_source_are_out_until_they_are_replaced_and_the_others_go_on(
    tmp_path: Path,
) -> None:
    async with Group(tmp_path, config=with_bounds(settle=0.05)) as group:
        await group.push(1, "a", "b", "c")
        reader, source, third = [await group.join(pod) for pod in "abc"]
        await group.coordinator.ready()
        await group.publish(0)
        reads_wrong_weights(reader, source.member)
        await group.publish(1)
        wrong = SuspicionCause.WRONG_WEIGHTS
        assert [cause for cause, _ in group.counts.suspicions] == [wrong, wrong]
        await eventually(lambda: reader.socket.closed and source.socket.closed)
        back = [await group.join(pod, boot="b2") for pod in "ab"]
        await eventually(lambda: all(worker.socket.closed for worker in back))
        assert group.counts.refusals == ["excluded_member"] * 2
        states = {report.pod: report.state for report in group.coordinator.report().members}
        out, kept = MemberState.SUSPECT, MemberState.IN_SYNC
        assert states == {"a": out, "b": out, "c": kept}
        assert not third.socket.closed
