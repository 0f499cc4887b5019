"""Members that count the bytes received over their TCP connections, by the kernel's counters."""

import gc
import os
import resource
import signal
import socket
import struct
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rollcall_protocol.wire.ids import MemberId
from rollcall_protocol.wire.weight_manifest import WeightManifest
from tests.unit.rollcall_runtime.sync import member as members
from tests.unit.rollcall_runtime.sync.faulty_members import FaultyMember
from tests.unit.rollcall_runtime.sync.member_processes import MemberProcess

FORK_SERVER = "tests.plugins.transports.kimi.counting_members:fork_members"
_RECEIVED = struct.Struct("=128xQ")  # tcpi_bytes_received in struct tcp_info

End = tuple[str, int]


class CountingMember(FaultyMember):
    """A connection's two addresses identify the member at its other end."""

    def connections(self) -> dict[tuple[End, End], int]:
        """Bytes received by the ends, its own and the peer's, of each open connection."""
        found: dict[tuple[End, End], int] = {}
        for entry in Path("/proc/self/fd").iterdir():
            try:
                connection = socket.socket(fileno=os.dup(int(entry.name)))
            except OSError:
                continue  # no socket, or closed meanwhile
            with connection:
                if connection.type != socket.SOCK_STREAM or connection.family == socket.AF_UNIX:
                    continue
                try:
                    ends = _end(connection.getsockname()), _end(connection.getpeername())
                except OSError:
                    continue  # listens
                info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RECEIVED.size)
                (found[ends],) = _RECEIVED.unpack(info)
        return found

    def held(self, tidy: bool) -> dict[str, int]:
        """Bytes of memory, and pieces of it that are registered; `tidy` has garbage collected."""
        if tidy:
            gc.collect()
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        engine: Any = self._engine
        return {
            "bytes": pages * resource.getpagesize(),
            "registered": engine.store.registered,
        }

    def receive_and_stop(
        self, group: str, number: int, manifest: WeightManifest, timeout: float, pid: int
    ) -> None:
        """Stop a process as soon as a read is in flight, before the next one."""
        session: Any = self._sessions[group]
        session._calls.abandoned = _Stopping(pid, session.reads)
        self.receive(group, number, manifest, timeout)


class _Stopping(threading.Event):
    """An owner's flag, which sessions look at between two steps."""

    def __init__(self, pid: int, reads: Any) -> None:
        super().__init__()
        self._pid, self._reads, self._stopped = pid, reads, False

    def is_set(self) -> bool:
        if len(self._reads) and not self._stopped:
            self._stopped = True
            os.kill(self._pid, signal.SIGSTOP)
        return super().is_set()


def _end(name: tuple[str, int]) -> End:
    return name[0].removeprefix("::ffff:"), name[1]


def fork_members() -> None:
    """The entry point of the fork server that starts such members."""
    members.fork_members(CountingMember)


def traffic(these: Sequence[MemberProcess]) -> Counter[tuple[MemberId, MemberId]]:
    """Bytes from one member to another, over the connections that are open now."""
    counts = {member.id: member.do("connections") for member in these}
    owner = {ends: name for name, found in counts.items() for ends in found}
    sent: Counter[tuple[MemberId, MemberId]] = Counter()
    for receiver, found in counts.items():
        for (here, there), nbytes in found.items():
            sender = owner.get((there, here))
            if sender is not None:
                sent[sender, receiver] += nbytes
    return sent
