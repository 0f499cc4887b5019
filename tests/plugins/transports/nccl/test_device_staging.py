"""What only NCCL does with weights in device memory."""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from rollcall_runtime.sync.errors import SyncError
from tests.doubles import build as doubles
from tests.plugins.transports.transport import transport
from tests.unit.rollcall_runtime.sync.faulty_members import FORK_SERVER
from tests.unit.rollcall_runtime.sync.member_processes import (
    MemberProcess,
    MemberProcesses,
    abort,
    done,
    join,
    settled,
)
from tests.unit.rollcall_runtime.sync.staging_memory import DOUBLE_GPU

transport("nccl")
pytestmark = pytest.mark.slow  # processes and their libraries

GROUP = "job/default"
MIB = 1 << 20
CONFIG: dict[str, Any] = {
    "operationTimeout": 2,
    "operationBytes": MIB,
    "library": doubles.NCCL,
    "cudaRuntime": doubles.NCCL,
    "reuseSeconds": 30,
}


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MemberProcesses]:
    """Members that stage on a GPU, and keep their communicators."""
    doubles.build()
    folder = tmp_path_factory.mktemp("staged")
    with MemberProcesses(
        folder,
        engine="nccl",
        config=CONFIG,
        device="cuda",
        environment=DOUBLE_GPU,
        start=FORK_SERVER,
    ) as made:
        yield made


def send(members: list[MemberProcess], number: int) -> None:
    """Send a version and compare every byte."""
    manifest = members[0].do("snapshot", seed=number, megabytes=5, bucket_bytes=2 * MIB)
    kwargs = {"group": GROUP, "number": number, "manifest": manifest, "timeout": 5.0}
    futures = [member.start("receive", **kwargs) for member in members[1:]]
    members[0].do("publish", group=GROUP, timeout=5.0)
    for member, future in zip(members[1:], futures, strict=True):
        done(future)
        assert member.do("commit", number=number) == members[0].do("digests")


def leave(members: list[MemberProcess]) -> None:
    """Abort, and wait until that is done."""
    abort(members)
    for member in members:
        settled(member, "abandoned", 0)


def test_a_buffer_that_may_still_be_written_is_not_lent_again(processes: MemberProcesses) -> None:
    pair = processes.group(1)
    receiver = pair[1]
    manifest = pair[0].do("snapshot", seed=1, megabytes=8, bucket_bytes=MIB)
    join(pair)
    waiting = receiver.start(
        "receive", group=GROUP, number=1, manifest=manifest, timeout=5.0
    )  # no member sends
    while receiver.do("begun", group=GROUP) == 0:
        time.sleep(0.02)
    leave(pair)
    assert isinstance(waiting.result(5).error, SyncError)
    assert receiver.do("counts")["in_use"] == 1  # NCCL is to write there as soon as a member sends
    join(pair)  # ends the communicator that was kept
    assert receiver.do("counts")["in_use"] == 0
    send(pair, 2)
    leave(pair)


def test_what_has_arrived_is_not_kept_from_others(processes: MemberProcesses) -> None:
    pair = processes.group(1)
    join(pair)
    send(pair, 3)
    leave(pair)  # the communicator is kept for 30 seconds
    assert pair[1].do("counts")["in_use"] == 1  # what is served


def test_each_member_stages_where_it_likes(processes: MemberProcesses) -> None:
    trio = processes.group(2)
    trio[1].do("stage_on_host")
    join(trio)
    send(trio, 4)
    trio[0].do("stage_on_host")
    send(trio, 5)
    leave(trio)
