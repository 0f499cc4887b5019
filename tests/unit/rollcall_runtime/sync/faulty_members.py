"""Members that fail on request, and waiting until they have recovered."""

import os
import resource
import signal
import threading
import time
from pathlib import Path
from typing import Any

from rollcall_protocol.wire.ids import MemberId
from rollcall_protocol.wire.messages import Seat
from rollcall_protocol.wire.weight_manifest import WeightManifest
from rollcall_runtime.sync.weights.snapshots import WeightSnapshot
from rollcall_runtime.sync.weights.staging import StagingArea
from tests.unit.rollcall_runtime.sync import member as members
from tests.unit.rollcall_runtime.sync.member_processes import MemberProcess, settled
from tests.unit.rollcall_runtime.sync.real_devices import spread
from tests.unit.rollcall_runtime.sync.staging_memory import staging_memory

_IO = Path("/proc/self/io")
FORK_SERVER = "tests.unit.rollcall_runtime.sync.faulty_members:fork_members"


class FaultyMember(members.GroupMember):
    """A member with the operations that only tests need."""

    def __init__(self, member: MemberId) -> None:
        spread(member)
        super().__init__(member)
        self._seen, self._watching = 0, threading.Lock()
        memory = staging_memory()
        if memory is not None:
            self._stage_in(memory)

    def corrupt(self) -> None:
        """Change one byte of what will be sent, after its digests were computed."""
        buffer = self._held.buffer
        changed = bytearray(buffer.read(12345, 12346))
        changed[0] ^= 1
        buffer.write(12345, memoryview(changed))

    def open(self, *args: Any, **kwargs: Any) -> Seat:
        """Also watch what the engine asks its library for."""
        seat = super().open(*args, **kwargs)
        engine: Any = self._opened
        read = getattr(engine, "read", None)
        if read is not None:

            def watched(peer: object, *, nbytes: int, **where: int) -> Any:
                with self._watching:
                    self._seen += nbytes
                return read(peer, nbytes=nbytes, **where)

            engine.read = watched
        return seat

    def reads(self) -> tuple[int, int]:
        """Bytes read from others: as the engine counts them, and as was seen."""
        engine: Any = self._opened
        if hasattr(engine, "read"):
            return engine.read_bytes, self._seen
        line = next(x for x in _IO.read_text().splitlines() if x.startswith("rchar:"))
        return engine.read_bytes, int(line.split()[1])

    def held_bytes(self) -> int:
        """The length of what is served."""
        return self._held_now().buffer.nbytes

    def served_digests(self) -> dict[str, str]:
        """Of each tensor that is served."""
        return members.digests(self._held_now())

    def _held_now(self) -> WeightSnapshot:
        served = self._stage.served
        held = self._stage.held(served) if served else None
        if held is None:
            raise RuntimeError("nothing is served")
        return held

    def stage_on_host(self) -> None:
        """Although the others stage on a device."""
        self._memory, self._stage = None, StagingArea()

    def begun(self, group: str) -> int:
        """How many broadcasts NCCL was given."""
        session: Any = self._sessions[group]
        count: int = session._communicator.begun
        return count

    def starve(self, spare: int) -> None:
        """Let the process have `spare` more bytes of address space, and no more."""
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + spare
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

    def receive_and_die(
        self, group: str, number: int, manifest: WeightManifest, timeout: float, die_after: int
    ) -> None:
        """Die between two steps of a transfer: at the `die_after`-th time."""
        self._arm(group, die_after)
        self.receive(group, number, manifest, timeout)

    def publish_and_die(self, group: str, timeout: float, die_after: int) -> None:
        """The same for the sender."""
        self._arm(group, die_after)
        self.publish(group, timeout)

    def _arm(self, group: str, die_after: int) -> None:
        session: Any = self._sessions[group]
        session._calls.abandoned = _Deadly(die_after)


class _Deadly(threading.Event):
    """An owner's flag, which sessions look at between two steps."""

    def __init__(self, looks: int) -> None:
        super().__init__()
        self._looks = looks

    def is_set(self) -> bool:
        self._looks -= 1
        if self._looks == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().is_set()


def fork_members() -> None:
    """The entry point of the fork server that starts such members."""
    members.fork_members(FaultyMember)


def at_rest(member: MemberProcess) -> dict[str, int]:
    """The member's counts once they have stopped changing: gloo closes sockets a little later."""
    settled(member, "abandoned", 0)
    counts: list[dict[str, int]] = []
    for _ in range(50):
        counts.append(member.do("counts"))
        if len(counts) >= 4 and all(count == counts[-1] for count in counts[-4:]):
            return counts[-1]
        time.sleep(0.05)
    raise AssertionError(f"never at rest: {counts}")
