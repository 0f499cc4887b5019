"""Engine kimi on two nodes: addresses of the loopback stand for them, the kernel counts bytes."""

import itertools
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from rollcall_protocol.wire.weight_manifest import WeightManifest
from rollcall_runtime.sync.engine import Role
from rollcall_runtime.sync.errors import SyncError
from tests.plugins.transports.kimi.counting_members import FORK_SERVER, traffic
from tests.plugins.transports.transport import transport
from tests.unit.rollcall_runtime.sync.member_processes import (
    MemberProcess,
    MemberProcesses,
    abort,
    done,
    join,
    settled,
)

transport("kimi")
pytestmark = pytest.mark.slow

GROUP = "job/default"
MIB = 1 << 20
TRAINER, FIRST, SECOND = "127.0.0.2", "127.0.0.3", "127.0.0.4"
CONFIG = {
    "nodeOf": "address",
    "operationBytes": 4 * MIB,
    "operationTimeout": 2,
    "maxAbandoned": 3,
}
_NUMBERS = itertools.count(1)


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MemberProcesses]:
    folder = tmp_path_factory.mktemp("nodes")
    with MemberProcesses(folder, engine="kimi", config=CONFIG, start=FORK_SERVER) as made:
        yield made


def open_at(processes: MemberProcesses, places: Sequence[tuple[str, Role]]) -> list[MemberProcess]:
    """A member at each address; they start side by side, because Mooncake takes a second."""
    found = [processes.member() for _ in places]
    opening = []
    for member, (address, role) in zip(found, places, strict=True):
        member.address = address
        opening.append(
            member.start(
                "open", engine=processes.engine, address=address, role=role, config=processes.config
            )
        )
    for member, future in zip(found, opening, strict=True):
        member.seat = done(future).result
    return found


@pytest.fixture(scope="module")
def members(processes: MemberProcesses) -> list[MemberProcess]:
    """A sender, and by turns a receiver of the first node and of the second; they survive."""
    receivers = [(node, Role.RECEIVER) for node in (FIRST, SECOND) * 2]
    return open_at(processes, [(TRAINER, Role.SENDER), *receivers])


def snapshot(sender: MemberProcess, seed: int) -> WeightManifest:
    made: WeightManifest = sender.do("snapshot", seed=seed, megabytes=64, bucket_bytes=8 * MIB)
    return made


def deliver(members: list[MemberProcess], manifest: WeightManifest) -> list[dict[str, str]]:
    """Send a version to all receivers; the digests of what each serves then."""
    sender, *receivers = members
    kwargs = {"group": GROUP, "number": next(_NUMBERS), "manifest": manifest, "timeout": 5}
    futures = [receiver.start("receive", **kwargs) for receiver in receivers]
    sender.do("publish", group=GROUP, timeout=5)
    for future in futures:
        done(future)
    return [receiver.do("commit", number=kwargs["number"]) for receiver in receivers]


def test_each_node_gets_one_copy_and_every_receiver_the_same_bytes(
    members: list[MemberProcess],
) -> None:
    sender, *receivers = members
    manifest = snapshot(sender, 1)
    join(members)
    assert deliver(members, manifest) == [sender.do("digests")] * 4
    total, little = manifest.total_bytes, manifest.total_bytes // 100  # of the rendezvous
    sent = traffic(members)
    leaders, others = receivers[:2], receivers[2:]
    for leader, other in zip(leaders, others, strict=True):
        assert total <= sent[sender.id, leader.id] < total + little
        assert sent[sender.id, other.id] < little
        assert total <= sent[leader.id, other.id] < total + little
    across = [(one, two) for one in receivers for two in receivers if one.address != two.address]
    assert [sent[one.id, two.id] for one, two in across] == [0] * 8
    abort(members)


def await_stop(member: MemberProcess) -> None:
    """Wait until the member's process is stopped."""
    deadline = time.monotonic() + 5
    while Path(f"/proc/{member.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        assert time.monotonic() < deadline, "no reader stopped it"
        time.sleep(0.01)


def wait_until_idle(members: list[MemberProcess]) -> None:
    """Have all abort, and see that nothing is left behind but what is served."""
    abort(members)
    for member in members:
        settled(member, "abandoned", 0)
    for receiver in members[1:]:
        settled(receiver, "in_use", 1)


@pytest.mark.parametrize("die_after", [2, 10])
def test_a_leader_killed_in_mid_send_leaves_all_others_whole(
    processes: MemberProcesses, members: list[MemberProcess], die_after: int
) -> None:
    sender, *survivors = members
    (victim,) = open_at(processes, [(FIRST, Role.RECEIVER)])
    everyone = [sender, victim, *survivors]
    join(everyone)
    deliver(everyone, snapshot(sender, 2))
    before = [survivor.do("served") for survivor in survivors]
    old, manifest = sender.do("digests"), snapshot(sender, 3)
    kwargs = {"group": GROUP, "number": next(_NUMBERS), "manifest": manifest, "timeout": 10}
    receiving = [survivor.start("receive", **kwargs) for survivor in survivors]
    victim.start("receive_and_die", die_after=die_after, **kwargs)
    sending = sender.start("publish", group=GROUP, timeout=10)
    assert victim.dead.wait(5)
    abort(members)
    errors = [future.result(5).error for future in (sending, *receiving)]
    assert all(isinstance(error, (SyncError, type(None))) for error in errors)
    assert errors[1] is not None, "whom the victim led cannot have everything"
    assert [survivor.do("served") for survivor in survivors] == before
    join(members)
    new = deliver(members, manifest)
    assert new == [sender.do("digests")] * 4
    assert new[0] != old
    wait_until_idle(members)


def test_a_session_stuck_in_reading_and_a_new_one_use_the_store_at_once(
    processes: MemberProcesses, members: list[MemberProcess]
) -> None:
    sender, leader, *others = members
    (stuck,) = open_at(processes, [(TRAINER, Role.SENDER)])
    join([stuck, leader, *others])
    deliver([stuck, leader, *others], snapshot(stuck, 4))  # so that Mooncake knows it
    manifest = snapshot(stuck, 8)
    stuck.start("publish", group=GROUP, timeout=10)
    kwargs = {"group": GROUP, "number": next(_NUMBERS), "manifest": manifest, "timeout": 10}
    receiving = [
        leader.start("receive_and_stop", pid=stuck.pid, **kwargs),
        *(other.start("receive", **kwargs) for other in others),
    ]
    await_stop(stuck)
    abort([leader, *others])
    errors = [future.result(5).error for future in receiving]
    assert isinstance(errors[0], SyncError)
    assert all(isinstance(error, (SyncError, type(None))) for error in errors)
    manifest = snapshot(sender, 5)
    join(members)
    assert deliver(members, manifest) == [sender.do("digests")] * 4
    assert leader.do("counts")["abandoned"] == 1, "the old session had let go before"
    stuck.close()
    wait_until_idle(members)


def test_a_session_whose_reader_is_stuck_and_a_new_one_use_the_senders_store_at_once(
    processes: MemberProcesses, members: list[MemberProcess]
) -> None:
    sender, *others = members
    (stopped,) = open_at(processes, [(FIRST, Role.RECEIVER)])
    manifest = snapshot(sender, 6)
    join([sender, stopped, *others])
    sending = sender.start("publish", group=GROUP, timeout=10)
    kwargs = {"group": GROUP, "number": next(_NUMBERS), "manifest": manifest, "timeout": 10}
    stopped.start("receive_and_stop", pid=stopped.pid, **kwargs)
    receiving = [other.start("receive", **kwargs) for other in others]
    await_stop(stopped)
    abort(members)
    for future in (sending, *receiving):
        assert isinstance(future.result(5).error, (SyncError, type(None)))
    manifest = snapshot(sender, 7)
    join(members)
    stopped.signal(signal.SIGCONT)  # it goes on reading what the old session sent
    assert deliver(members, manifest) == [sender.do("digests")] * 4
    stopped.close()
    wait_until_idle(members)


def test_a_hundred_rebuilds_with_new_buffers_leave_no_memory_behind(
    members: list[MemberProcess],
) -> None:
    sender = members[0]
    held: list[list[dict[str, int]]] = []
    for turn in range(100):
        manifest = sender.do("snapshot", seed=turn, megabytes=1 + turn % 4, bucket_bytes=MIB)
        join(members)
        assert deliver(members, manifest) == [sender.do("digests")] * 4
        wait_until_idle(members)
        if turn in (19, 99):  # what failed sessions left is collected before, nothing later
            held.append([member.do("held", tidy=turn == 19) for member in members])
    early, late = held
    assert [one["registered"] for one in late] == [one["registered"] for one in early]
    growth = [after["bytes"] - before["bytes"] for before, after in zip(early, late, strict=True)]
    assert max(growth) < 32 * MIB, growth  # all that travelled meanwhile is 200 MiB
