"""Ports for servers that another process opens in a moment."""

from __future__ import annotations

import random
import socket

# Below those that the kernel gives to outgoing connections and to sockets that bind port 0: one of
# them could take the port before the server does, or between two runs of the same server.
_PORTS = range(20000, 32000)


def free_ports(count: int, *, host: str = "127.0.0.1") -> list[int]:
    """Ports of `host` that no process listens on now."""
    found: list[int] = []
    held: list[socket.socket] = []
    try:
        while len(found) < count:
            port = random.choice(_PORTS)
            probe = socket.socket()
            held.append(probe)
            try:
                probe.bind((host, port))
            except OSError:
                continue
            found.append(port)
    finally:
        for probe in held:
            probe.close()
    return found


def free_port(*, host: str = "127.0.0.1") -> int:
    """A port of `host` that no process listens on now."""
    return free_ports(1, host=host)[0]
