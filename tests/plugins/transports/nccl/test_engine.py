"""What only NCCL does: communicators that are made from the one before, and the real library."""

import ctypes
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rollcall_plugins.transports.nccl.communicator import BuildMethod, ParentOffer, choose_method
from rollcall_plugins.transports.nccl.nccl_library import Config, NcclLibrary
from rollcall_runtime.sync.engine import Role
from rollcall_runtime.sync.errors import SyncError, TransferFailedError
from tests.doubles import build as doubles
from tests.plugins.transports.transport import transport
from tests.unit.rollcall_runtime.sync.member_processes import (
    MemberProcess,
    MemberProcesses,
    abort,
    done,
    join,
    settled,
)

nccl = transport("nccl")

MIB = 1 << 20
CONFIG: dict[str, Any] = {
    "operationTimeout": 2,
    "operationBytes": MIB,
    "library": doubles.NCCL,
    "cudaRuntime": doubles.NCCL,
    "reuseSeconds": 60,  # longer than a test, so no communicator ends by itself in one
}


class Calls:
    """What the double was called with, since one last asked."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read = 0

    def new(self) -> list[str]:
        """Names of the calls, sorted."""
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        self._read, seen = len(lines), self._read
        return sorted(lines[seen:])


pytestmark = pytest.mark.slow  # processes and their libraries


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> Calls:
    """What all members together call."""
    return Calls(tmp_path_factory.mktemp("calls") / "log")


@pytest.fixture(scope="module")
def fork_server(
    calls: Calls, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MemberProcesses]:
    """Starts members that keep their communicators."""
    doubles.build()
    with MemberProcesses(
        tmp_path_factory.mktemp("nccl"),
        engine="nccl",
        config=CONFIG,
        device="cuda",
        environment={"DOUBLE_LOG": str(calls.path)},
    ) as made:
        yield made


@pytest.fixture
def processes(fork_server: MemberProcesses) -> Iterator[MemberProcesses]:
    """Members of one test, which call nothing after it."""
    yield fork_server
    fork_server.close_members()


def send(members: list[MemberProcess], number: int) -> None:
    """Send a version and compare every byte."""
    manifest = members[0].do("snapshot", seed=number, megabytes=5, bucket_bytes=2 * MIB)
    kwargs = {"group": "job/default", "number": number, "manifest": manifest, "timeout": 5.0}
    futures = [member.start("receive", **kwargs) for member in members[1:]]
    members[0].do("publish", group="job/default", timeout=5.0)
    for member, future in zip(members[1:], futures, strict=True):
        done(future)
        assert member.do("commit", number=number) == members[0].do("digests")


def leave(members: list[MemberProcess]) -> None:
    """Abort, and wait until what was aborted can be used again."""
    abort(members)
    for member in members:
        settled(member, "abandoned", 0)


def test_a_group_that_loses_a_member_shrinks_its_communicator(
    processes: MemberProcesses, calls: Calls
) -> None:
    trio = processes.group(2)
    calls.new()
    join(trio)
    send(trio, 1)
    assert calls.new() == [*["ncclCommInitRankConfig"] * 3, "ncclGetUniqueId"]
    leave(trio)
    trio[1].close()
    rest = [trio[0], trio[2]]
    join(rest)
    assert calls.new() == [*["ncclCommAbort"] * 2, *["ncclCommShrink abort"] * 2]
    send(rest, 2)
    leave(rest)


def test_a_member_killed_in_a_broadcast_is_shrunk_away(
    processes: MemberProcesses, calls: Calls
) -> None:
    trio = processes.group(2)
    manifest = trio[0].do("snapshot", seed=3, megabytes=64, bucket_bytes=8 * MIB)
    join(trio)
    receiving = trio[1].start(
        "receive", group="job/default", number=3, manifest=manifest, timeout=5.0
    )
    sending = trio[0].start("publish", group="job/default", timeout=5.0)
    time.sleep(0.1)  # the third does not receive, so all are in the middle
    trio[2].close()
    error = sending.result(5).error  # the sender fails without waiting for a timeout
    assert isinstance(error, TransferFailedError)
    assert "remote process exited" in str(error)
    leave(trio[:2])
    assert isinstance(receiving.result(5).error, SyncError)
    calls.new()
    join(trio[:2])
    assert "ncclCommShrink abort" in calls.new()
    send(trio[:2], 4)
    leave(trio[:2])


def test_a_stopped_member_is_shrunk_away(processes: MemberProcesses, calls: Calls) -> None:
    trio = processes.group(2)
    join(trio)
    trio[2].signal(signal.SIGSTOP)
    leave(trio[:2])
    calls.new()
    join(trio[:2])
    assert calls.new().count("ncclCommShrink abort") == 2
    send(trio[:2], 5)
    leave(trio[:2])


def test_a_group_that_gains_a_member_grows_its_communicator(
    processes: MemberProcesses, calls: Calls
) -> None:
    pair = processes.group(1)
    join(pair)
    send(pair, 6)
    leave(pair)
    trio = [*pair, processes.open(Role.RECEIVER)]
    calls.new()
    join(trio)
    assert calls.new() == [
        *["ncclCommAbort"] * 2,
        *["ncclCommGetUniqueId"],
        *["ncclCommGrow"] * 2,
        "ncclCommGrow new",
    ]
    send(trio, 7)
    leave(trio)


def test_a_library_that_cannot_shrink_makes_a_new_communicator(
    processes: MemberProcesses, calls: Calls
) -> None:
    old = {**CONFIG, "library": doubles.NCCL_OLD, "cudaRuntime": doubles.NCCL_OLD}
    trio = [processes.member() for _ in range(3)]
    for number, member in enumerate(trio):
        role = Role.RECEIVER if number else Role.SENDER
        member.open(role, engine="nccl", config=old, device="cuda")
    join(trio)
    leave(trio)
    calls.new()
    join(trio[:2])
    assert calls.new() == [
        *["ncclCommAbort"] * 2,
        *["ncclCommInitRankConfig"] * 2,
        "ncclGetUniqueId",
    ]
    send(trio[:2], 8)
    leave(trio[:2])


def test_a_shrink_that_fails_anywhere_is_given_up_by_all(tmp_path: Path) -> None:
    doubles.build()
    calls = Calls(tmp_path / "log")
    environment = {"DOUBLE_LOG": str(calls.path), "DOUBLE_SHRINK_FAILS": "1"}
    with MemberProcesses(
        tmp_path, engine="nccl", config=CONFIG, device="cuda", environment=environment
    ) as processes:
        trio = processes.group(2)
        join(trio)
        leave(trio)
        calls.new()
        join(trio[:2])
        called = calls.new()
        assert called.count("ncclCommShrink abort") == 2
        assert called.count("ncclCommInitRankConfig") == 2
        send(trio[:2], 9)


def test_a_communicator_without_users_is_ended(processes: MemberProcesses) -> None:
    pair = [processes.member(), processes.member()]
    for role, member in zip((Role.SENDER, Role.RECEIVER), pair, strict=True):
        config = CONFIG | {"reuseSeconds": 0.1}
        member.open(role, engine="nccl", config=config, device="cuda")
    before = [member.do("counts")["descriptors"] for member in pair]
    join(pair)
    leave(pair)
    for member, descriptors in zip(pair, before, strict=True):
        settled(member, "descriptors", descriptors)  # the double's sockets are closed


@pytest.mark.parametrize("pin_memory", [True, False])
def test_host_buffers_are_page_locked_before_they_are_copied_unless_pin_memory_is_off(
    processes: MemberProcesses, calls: Calls, pin_memory: bool
) -> None:
    pair = [processes.member(), processes.member()]
    for role, member in zip((Role.SENDER, Role.RECEIVER), pair, strict=True):
        member.open(role, engine="nccl", config=CONFIG | {"pinMemory": pin_memory}, device="cuda")
    join(pair)
    calls.new()
    send(pair, 10)
    copies = calls.new().count("cudaMemcpyAsync pageable")
    assert copies == 0 if pin_memory else copies > 0
    leave(pair)


def test_a_device_that_does_not_exist_is_reported(processes: MemberProcesses) -> None:
    with pytest.raises(ValueError, match="device is 7, but this process sees 1 GPUs"):
        processes.member().open(
            Role.SENDER, engine="nccl", config=CONFIG | {"device": 7}, device="cuda"
        )


PARENT = ParentOffer(token="t", rank=0, size=3, operations=4)


def kept(rank: int, *, operations: int = 4) -> ParentOffer:
    """What a member of the parent offers."""
    return ParentOffer(token="t", rank=rank, size=3, operations=operations)


@pytest.mark.parametrize(
    ("offers", "how", "excluded"),
    [
        ([PARENT, kept(2)], BuildMethod.SHRINK, [1]),
        (
            [PARENT, kept(2, operations=-1)],
            BuildMethod.SHRINK,
            [1],
        ),  # in flight: aborted
        ([PARENT, kept(1), kept(2), ParentOffer()], BuildMethod.GROW, []),
        ([PARENT, kept(1), kept(2, operations=-1), ParentOffer()], BuildMethod.NEW, []),
        (
            [PARENT, kept(1), kept(2, operations=5), ParentOffer()],
            BuildMethod.NEW,
            [],
        ),  # not in step
        ([PARENT, kept(2), ParentOffer()], BuildMethod.NEW, []),  # one lost and one gained
        (
            [PARENT, ParentOffer(), kept(1), kept(2)],
            BuildMethod.NEW,
            [],
        ),  # newcomers come last
        ([PARENT, kept(2), kept(1)], BuildMethod.NEW, []),  # ranks keep their order
        ([PARENT, kept(1), kept(2)], BuildMethod.NEW, []),  # the same members once more
        ([ParentOffer(), kept(1)], BuildMethod.NEW, []),  # another sender
        ([ParentOffer(), ParentOffer()], BuildMethod.NEW, []),
        ([kept(1), kept(2)], BuildMethod.NEW, []),  # who sends was not the sender
        ([PARENT, ParentOffer(token="u", rank=1, size=3)], BuildMethod.NEW, []),
    ],
)
def test_the_sender_decides_from_what_is_offered(
    offers: list[ParentOffer], how: BuildMethod, excluded: list[int]
) -> None:
    assert choose_method(offers, can_shrink=True, can_grow=True) == (how, excluded)
    assert choose_method(offers, can_shrink=False, can_grow=False) == (BuildMethod.NEW, [])


def test_a_library_without_its_functions_is_refused() -> None:
    with pytest.raises(ImportError, match="has no function ncclGetVersion"):
        NcclLibrary("libm.so.6")


def test_a_library_that_is_not_there_is_named() -> None:
    with pytest.raises(ImportError, match=r"tried /nowhere/libnccl.so.2: .*cannot open"):
        NcclLibrary("/nowhere/libnccl.so.2")


def test_a_negative_time_is_refused() -> None:
    with pytest.raises(ValueError, match="reuse_seconds"):
        nccl.NcclSettings(reuse_seconds=-1)


def test_the_real_library_has_what_is_called() -> None:
    real = NcclLibrary()
    assert real.version >= 21800
    assert len(real.unique_id()) == 128
    assert real.can_shrink == (real.version >= 22700)


def test_the_configuration_is_laid_out_as_the_library_expects_it() -> None:
    # Offsets of ncclConfig_t in nccl.h: a size_t, two unsigned, four int, a pointer, an int.
    assert (Config.blocking.offset, Config.net_name.offset) == (16, 32)
    assert (Config.split_share.offset, ctypes.sizeof(Config)) == (40, 48)
