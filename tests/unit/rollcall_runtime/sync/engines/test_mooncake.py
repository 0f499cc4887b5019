"""What only Mooncake does: its reads cannot be cancelled."""

import signal
import time
from pathlib import Path

import pytest

from rollcall_runtime.bench.member_processes import MemberProcesses, abort, join, publish, settled
from rollcall_runtime.sync.engine import Role
from rollcall_runtime.sync.engines.pull.topology import Topology
from rollcall_runtime.sync.errors import SyncError
from tests.unit.rollcall_runtime.sync.copying_peers import Local
from tests.unit.rollcall_runtime.sync.copying_peers import abort as abort_local
from tests.unit.rollcall_runtime.sync.faulty_members import FORK_SERVER

GROUP = "job/default"
MIB = 1 << 20
CONFIG = {"operationTimeout": 1, "drainTimeout": 0.1, "operationBytes": 64 * MIB}

pytestmark = pytest.mark.slow


def test_a_chain_closes_over_a_member_that_left_and_registers_no_memory_again() -> None:
    mooncake = pytest.importorskip("rollcall_runtime.sync.engines.mooncake", exc_type=ImportError)
    settings = mooncake.MooncakeSettings(topology=Topology.CHAIN.value, operation_bytes=MIB)
    party = Local(mooncake.MooncakeEngine, 3, settings, nbytes=4 * MIB)
    before = party.join(range(4))
    party.transfer(before, party.fill(1, bucket=MIB))
    registered = [set(engine._registered) for engine in party.engines]
    abort_local(before)
    after = party.join([0, 1, 3])
    party.transfer(after, party.fill(2, bucket=MIB))
    assert [set(engine._registered) for engine in party.engines] == registered
    abort_local(after)
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
