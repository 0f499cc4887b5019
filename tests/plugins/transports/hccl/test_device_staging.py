"""What only HCCL does with weights in device memory."""

import time
from collections.abc import Iterator

import pytest

from rollcall_runtime.sync.errors import SyncError
from tests.doubles import build as doubles
from tests.unit.rollcall_runtime.sync.faulty_members import FORK_SERVER
from tests.unit.rollcall_runtime.sync.member_processes import (
    MemberProcesses,
    abort,
    join,
    publish,
    settled,
)
from tests.unit.rollcall_runtime.sync.staging_memory import DOUBLE_NPU

pytestmark = pytest.mark.slow  # processes and their libraries

GROUP = "job/default"
MIB = 1 << 20


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MemberProcesses]:
    """Members that stage on an NPU."""
    doubles.build()
    with MemberProcesses(
        tmp_path_factory.mktemp("staged"),
        engine="hccl",
        device="npu",
        start=FORK_SERVER,
        config={"operationTimeout": 2, "operationBytes": MIB, "leaveSeconds": 30},
        environment={"LD_LIBRARY_PATH": str(doubles.FOLDER)} | DOUBLE_NPU,
    ) as made:
        yield made


def test_a_process_that_hangs_is_killed_before_its_buffer_is_lent_again(
    processes: MemberProcesses,
) -> None:
    pair = processes.group(1)
    receiver = pair[1]
    manifest = pair[0].do("snapshot", seed=1, megabytes=8, bucket_bytes=MIB)
    join(pair)
    kwargs = {"group": GROUP, "number": 1, "manifest": manifest, "timeout": 5.0}
    waiting = receiver.start("receive", **kwargs)  # no member sends
    settled(receiver, "in_use", 1)
    time.sleep(0.1)
    abort(pair)
    assert isinstance(waiting.result(5).error, SyncError)
    for member in pair:
        settled(member, "abandoned", 0)
    assert receiver.do("counts")["in_use"] == 0
    join(pair)
    publish(pair, number=2, manifest=manifest)
    abort(pair)


def test_members_may_stage_on_the_host_beside_others(processes: MemberProcesses) -> None:
    trio = processes.group(2)
    trio[1].do("stage_on_host")
    join(trio)
    for number in (3, 4):  # the device's memory is another each time, perhaps at the same place
        manifest = trio[0].do("snapshot", seed=number, megabytes=3, bucket_bytes=MIB)
        publish(trio, number=number, manifest=manifest)
        trio[0].do("stage_on_host")
    abort(trio)
