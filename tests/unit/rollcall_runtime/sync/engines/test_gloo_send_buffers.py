"""Send buffers of connections that a library keeps to itself."""

import socket
from contextlib import ExitStack

from rollcall_runtime.sync.engines.gloo import send_buffers

_SMALL = 64 << 10


def _send_buffer(connection: socket.socket) -> int:
    return connection.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)


def _connect(stack: ExitStack) -> socket.socket:
    server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    connection = stack.enter_context(socket.create_connection(server.getsockname()))
    stack.enter_context(server.accept()[0])
    return connection


def test_connections_made_inside_get_the_buffer_and_stay_open() -> None:
    with ExitStack() as stack:
        older = _connect(stack)
        untouched = _send_buffer(older)
        with send_buffers(_SMALL):
            newer = _connect(stack)
        assert _send_buffer(newer) == 2 * _SMALL  # the kernel doubles it
        assert _send_buffer(older) == untouched
        newer.sendall(b"x")


def test_zero_leaves_the_buffers_to_the_kernel() -> None:
    with ExitStack() as stack:
        usual = _send_buffer(_connect(stack))
        with send_buffers(0):
            newer = _connect(stack)
        assert _send_buffer(newer) == usual


def test_other_descriptors_are_left_alone() -> None:
    with ExitStack() as stack:
        with send_buffers(_SMALL):
            one, other = socket.socketpair()  # Unix sockets have peers too
            stack.enter_context(one)
            stack.enter_context(other)
            stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        assert _send_buffer(one) > 2 * _SMALL
