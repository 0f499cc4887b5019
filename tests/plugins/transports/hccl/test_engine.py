"""What only HCCL does: a communicator in a process that can be killed."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rollcall_plugins.transports.hccl.hccl_library import HcclLibrary
from rollcall_plugins.transports.hccl.process import HcclProcess, HcclProcessConfig
from rollcall_runtime.sync.bindings.acl_library import locate
from rollcall_runtime.sync.engine import Role
from rollcall_runtime.sync.engines.common.library_process import LibraryProcessError
from rollcall_runtime.sync.errors import JoinFailedError, SyncError, TransferFailedError
from tests.doubles import build as doubles
from tests.unit.rollcall_runtime.sync.member_processes import (
    MemberProcess,
    MemberProcesses,
    abort,
    done,
    join,
    publish,
    settled,
)

MIB = 1 << 20
MAIN = "hccl.process"


pytestmark = pytest.mark.slow  # processes and their libraries


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the double was called with."""
    return tmp_path_factory.mktemp("calls") / "log"


@pytest.fixture(scope="module")
def processes(log: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MemberProcesses]:
    """Members on NPUs that are the host's memory."""
    doubles.build()
    with MemberProcesses(
        tmp_path_factory.mktemp("hccl"),
        engine="hccl",
        device="npu",
        config={"operationTimeout": 2, "operationBytes": MIB, "leaveSeconds": 30},
        environment={"DOUBLE_LOG": str(log), "LD_LIBRARY_PATH": str(doubles.FOLDER)},
    ) as made:
        yield made


def children(parent: int) -> set[int]:
    """The processes that own a communicator of this one."""
    found = set()
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            text = status.read_text()
            command = status.with_name("cmdline").read_text()
        except OSError:  # it has ended
            continue
        if f"\nPPid:\t{parent}\n" in text and MAIN in command:
            found.add(int(status.parent.name))
    return found


def until(true: Callable[[], bool]) -> None:
    """Wait for it, a few seconds at most."""
    deadline = time.monotonic() + 5
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def leave(members: list[MemberProcess]) -> None:
    """Abort, and wait until that is done."""
    abort(members)
    for member in members:
        settled(member, "abandoned", 0)


def test_each_process_gets_the_address_of_its_member(processes: MemberProcesses, log: Path) -> None:
    pair = processes.group(1)
    join(pair)
    leave(pair)
    joins = {line for line in log.read_text().splitlines() if "InitRootInfo" in line}
    assert joins == {f"HcclCommInitRootInfo {member.address}" for member in pair}


def test_a_process_at_rest_serves_the_next_session(processes: MemberProcesses) -> None:
    pair = processes.group(1)
    manifest = pair[0].do("snapshot", seed=1, megabytes=3, bucket_bytes=MIB)
    join(pair)
    before = [children(member.pid) for member in pair]
    assert [len(each) for each in before] == [1, 1]
    leave(pair)
    join(pair)
    publish(pair, number=1, manifest=manifest)
    assert [children(member.pid) for member in pair] == before
    leave(pair)


def test_a_process_that_hangs_is_killed_and_another_takes_over(processes: MemberProcesses) -> None:
    trio = processes.group(2)
    manifest = trio[0].do("snapshot", seed=2, megabytes=16, bucket_bytes=8 * MIB)
    join(trio)
    before = children(trio[0].pid)
    sending = trio[0].start("publish", group="job/default", timeout=5.0)  # no member receives
    time.sleep(0.1)
    leave(trio)
    assert isinstance(sending.result(5).error, SyncError)
    assert children(trio[0].pid) == set()
    join(trio)
    publish(trio, number=2, manifest=manifest)
    assert children(trio[0].pid).isdisjoint(before)
    leave(trio)


def test_a_process_that_dies_is_reported(processes: MemberProcesses) -> None:
    pair = processes.group(1)
    pair[0].do("snapshot", seed=3, megabytes=16, bucket_bytes=8 * MIB)
    join(pair)
    sending = pair[0].start("publish", group="job/default", timeout=5.0)
    time.sleep(0.1)
    (victim,) = children(pair[0].pid)
    os.kill(victim, signal.SIGKILL)
    error = sending.result(2).error
    assert isinstance(error, TransferFailedError)
    assert "the HCCL process exited" in str(error)
    leave(pair)


def test_processes_end_with_their_member(processes: MemberProcesses) -> None:
    pair = processes.group(1)
    manifest = pair[0].do("snapshot", seed=4, megabytes=16, bucket_bytes=8 * MIB)
    join(pair)
    publish(pair, number=4, manifest=manifest)
    pair[0].start("publish", group="job/default", timeout=5.0)  # it hangs in HCCL meanwhile
    time.sleep(0.1)
    owned = children(pair[0].pid)
    assert len(owned) == 1
    pair[0].close()
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in owned))


def test_closing_the_engine_ends_its_process(processes: MemberProcesses) -> None:
    pair = processes.group(1)
    join(pair)
    leave(pair)
    for member in pair:
        member.do("close")
        assert children(member.pid) == set()


def test_an_error_of_the_library_names_the_function(processes: MemberProcesses) -> None:
    pair = [processes.member(), processes.member()]
    for role, member in zip((Role.SENDER, Role.RECEIVER), pair, strict=True):
        config = {"aclLibrary": "/nowhere/libascendcl.so"}
        member.open(role, engine="hccl", config=config, device="npu")
    with pytest.raises(JoinFailedError, match=r"libascendcl.so was not found.*nowhere"):
        join(pair)
    leave(pair)


def test_a_process_answers_in_order_and_a_killed_one_does_not() -> None:
    doubles.build()
    library = str(doubles.FOLDER / "libhccl.so")
    config = HcclProcessConfig(hccl=library, acl=library, device=0, slots=2, slot_bytes=1000)
    process = HcclProcess(config, address="127.0.0.1")
    try:
        assert process.wait_for_answer(lambda: None) == {}  # it has started
        process.call("root")
        assert process.busy
        root = process.wait_for_answer(lambda: None)["root"]
        process.call("join", root=root, size=2, rank=0)  # the other never comes
        looks = []

        def poll() -> None:
            looks.append(1)
            if len(looks) == 5:
                raise TimeoutError

        with pytest.raises(TimeoutError):
            process.wait_for_answer(poll)
    finally:
        process.kill()
    assert process.memory == []
    with pytest.raises(LibraryProcessError):
        process.call("leave")


def test_a_library_is_found_where_the_loader_or_cann_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{tmp_path}/a:{tmp_path}/b")
    monkeypatch.setenv("ASCEND_HOME_PATH", f"{tmp_path}/cann")
    with pytest.raises(ImportError, match=r"is in none of .*/a, .*/b, .*/cann/lib64, /usr/local"):
        locate("libhccl.so")
    for folder in (tmp_path / "cann" / "lib64", tmp_path / "b"):
        folder.mkdir(parents=True)
        (folder / "libhccl.so").touch()
        assert locate("libhccl.so") == str(folder / "libhccl.so")


def test_root_info_of_another_size_is_refused() -> None:
    doubles.build()
    library = HcclLibrary(str(doubles.FOLDER / "libhccl.so"))
    assert len(library.root_info()) == 4108
    with pytest.raises(ValueError, match="4108 bytes, not 3"):
        library.init(b"abc", size=2, rank=0)


def test_a_receive_into_nothing_times_out_in_time(processes: MemberProcesses) -> None:
    pair = processes.group(1)
    manifest = pair[0].do("snapshot", seed=5, megabytes=1, bucket_bytes=MIB)
    join(pair)
    late = pair[1].start("receive", group="job/default", number=5, manifest=manifest, timeout=0.3)
    with pytest.raises(SyncError):
        done(late)
    leave(pair)
