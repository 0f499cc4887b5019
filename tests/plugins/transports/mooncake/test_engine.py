"""What only Mooncake does: its reads cannot be cancelled."""

import signal
import time
from pathlib import Path
from typing import Any

import pytest

from rollcall_runtime.sync.digests import digest_of
from rollcall_runtime.sync.engine import Role
from rollcall_runtime.sync.engines.pull.topology import Topology
from rollcall_runtime.sync.errors import SyncError
from rollcall_runtime.sync.memory.buffers import HostBuffer
from tests.plugins.transports.transport import transport
from tests.unit.rollcall_runtime.sync.copying_peers import Local, call, eventually
from tests.unit.rollcall_runtime.sync.copying_peers import abort as abort_local
from tests.unit.rollcall_runtime.sync.faulty_members import FORK_SERVER
from tests.unit.rollcall_runtime.sync.member_processes import (
    MemberProcesses,
    abort,
    join,
    publish,
    settled,
)

GROUP = "job/default"
MIB = 1 << 20
CONFIG = {"operationTimeout": 1, "drainTimeout": 0.1, "operationBytes": 64 * MIB}

pytestmark = pytest.mark.slow


def party_of(receivers: int, topology: Topology) -> Local:
    mooncake = transport("mooncake")
    settings = mooncake.MooncakeSettings(topology=topology.value, operation_bytes=MIB)
    return Local(mooncake.MooncakeEngine, receivers, settings, nbytes=4 * MIB)


class Outsider:
    """A process of its own, as far as Mooncake is concerned, which was asked by no member."""

    def __init__(self) -> None:
        library = pytest.importorskip("mooncake.engine", exc_type=ImportError)
        self._transfers = library.TransferEngine()
        assert self._transfers.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
        self._buffer = HostBuffer(MIB)
        self._buffer.memory[:] = b"x" * MIB

    def write(self, engine: Any, buffer: HostBuffer) -> bool:
        """Whether Mooncake says that it wrote to the beginning of a member's buffer."""
        segment = engine._describe()["segment"]
        local, remote = self._buffer.address, buffer.address
        return bool(self._transfers.transfer_sync_write(segment, local, remote, MIB) == 0)


def test_a_chain_closes_over_a_member_that_left_and_leaves_no_memory_registered() -> None:
    party = party_of(3, Topology.CHAIN)
    for number, members in enumerate((range(4), [0, 1, 3])):
        sessions = party.join(members)
        party.transfer(sessions, party.fill(number, bucket=MIB))
        assert [set(engine._registered) for engine in party.engines] == [set()] * 4
        abort_local(sessions)
    party.close()


def test_an_outsider_overwrites_neither_what_is_sent_nor_what_was_received() -> None:
    party, outsider = party_of(2, Topology.STAR), Outsider()
    sessions, manifest = party.join(range(3)), party.fill(1, bucket=MIB)
    sending = call(sessions[0].publish, party.buffers[0], manifest, timeout=20)
    assert eventually(lambda: bool(party.engines[0]._registered))
    assert not outsider.write(party.engines[0], party.buffers[0])
    receiving = [
        call(sessions[rank].receive, party.buffers[rank], manifest, timeout=20) for rank in (1, 2)
    ]
    for moving in (sending, *receiving):
        moving.result(20)
    for engine, buffer in zip(party.engines, party.buffers, strict=True):
        assert not outsider.write(engine, buffer)
        assert buffer.memory == party.buffers[0].memory
        assert digest_of(buffer.memory[:MIB]) == manifest.digests[0]
    abort_local(sessions)
    party.close()


def test_a_read_from_a_stopped_source_holds_its_buffer_until_the_source_is_dead(
    tmp_path: Path,
) -> None:
    with MemberProcesses(
        tmp_path, engine="mooncake", config=CONFIG, start=FORK_SERVER
    ) as processes:
        sender, other, receiver = (
            processes.open(role) for role in (Role.SENDER, Role.SENDER, Role.RECEIVER)
        )
        manifest = sender.do("snapshot", seed=1, megabytes=512, bucket_bytes=64 * MIB)
        join([sender, receiver])
        kwargs = {"group": GROUP, "number": 1, "manifest": manifest, "timeout": 5}
        receiving = receiver.start("receive", **kwargs)
        sender.start("publish", group=GROUP, timeout=5)
        time.sleep(0.1)
        sender.signal(signal.SIGSTOP)
        assert isinstance(receiving.result(10).error, SyncError), "it was stopped too late"
        abort([receiver])
        time.sleep(0.5)  # five times as long as the session waits
        held = receiver.do("counts")
        assert (held["abandoned"], held["in_use"]) == (1, 1)
        smaller = other.do("snapshot", seed=2, megabytes=1, bucket_bytes=MIB)
        join([other, receiver])
        publish([other, receiver], number=2, manifest=smaller)
        sender.signal(signal.SIGKILL)
        settled(receiver, "abandoned", 0)
        settled(receiver, "in_use", 1, seconds=1)  # the version that it serves
