"""Sockets that a library opened in this process and does not hand out."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_DESCRIPTORS = Path("/proc/self/fd")


@contextmanager
def send_buffers(nbytes: int) -> Iterator[None]:
    """Give the TCP connections that are made inside send buffers of `nbytes`; 0 leaves them.

    Linux grows a send buffer to megabytes. With several connections these no longer fit into the
    cache, and each byte that is sent goes to memory and back: on loopback a quarter of a
    transfer's CPU time. A connection that another thread makes meanwhile gets the same buffer.
    """
    if nbytes == 0:
        yield
        return
    before = set(_sockets())
    yield
    for descriptor in set(_sockets()) - before:
        with suppress(OSError):  # closed since, or not TCP
            _limit(descriptor, nbytes)


def _sockets() -> Iterator[int]:
    for entry in _DESCRIPTORS.iterdir():
        with suppress(OSError):  # closed since
            if str(entry.readlink()).startswith("socket:"):
                yield int(entry.name)


def _limit(descriptor: int, nbytes: int) -> None:
    with socket.socket(fileno=os.dup(descriptor)) as connection:  # closes its own copy only
        connection.getpeername()  # a listener has none
        if connection.type == socket.SOCK_STREAM and connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, nbytes)
