"""Members that tell what has come over their TCP connections, as the kernel counts it."""

import os
import socket
import struct
from pathlib import Path

from rollcall_runtime.bench import member as members
from tests.unit.rollcall_runtime.sync.faults import FaultyMember

NURSERY = "tests.unit.rollcall_runtime.sync.traffic:nursery"
_RECEIVED = struct.Struct("=128xQ")  # tcpi_bytes_received in struct tcp_info

End = tuple[str, int]


class CountingMember(FaultyMember):
    """Whoever else is on the other end of a connection is found by its two ends."""

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


def _end(name: tuple[str, int]) -> End:
    return name[0].removeprefix("::ffff:"), name[1]


def nursery() -> None:
    """Where such members come from."""
    members.nursery(CountingMember)
