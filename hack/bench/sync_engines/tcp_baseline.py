"""The baseline: bare TCP from every sender to every receiver, without digests."""

import socket
import threading
from collections.abc import Callable, Sequence
from functools import partial

_CONNECT_SECONDS = 30.0  # until both ends must be connected


class TcpBaseline:
    """One member's connections. A sender has one for each receiver, a receiver for each sender."""

    def __init__(self) -> None:
        self._server: socket.socket | None = None
        self._connections: list[socket.socket] = []

    def listen(self, address: str, receivers: int) -> int:
        """Open a sender's port, which is returned."""
        self._server = socket.create_server((address, 0), backlog=receivers)
        self._server.settimeout(_CONNECT_SECONDS)
        port: int = self._server.getsockname()[1]
        return port

    def accept(self, receivers: int) -> None:
        """Wait for `receivers` of them."""
        if self._server is None:
            raise RuntimeError("this member does not listen: call listen() first")
        with self._server:
            self._connections = [self._server.accept()[0] for _ in range(receivers)]
        for connection in self._connections:
            connection.settimeout(_CONNECT_SECONDS)

    def connect(self, senders: Sequence[tuple[str, int]]) -> None:
        """Connect to all senders, in their order."""
        self._connections = [
            socket.create_connection(at, timeout=_CONNECT_SECONDS) for at in senders
        ]

    def send(self, memory: memoryview) -> None:
        """Send all of `memory` to every receiver, side by side."""
        _side_by_side([partial(connection.sendall, memory) for connection in self._connections])

    def receive(self, parts: Sequence[memoryview]) -> None:
        """Fill one part from each sender, side by side."""

        def fill(connection: socket.socket, view: memoryview) -> None:
            while view:
                count = connection.recv_into(view)
                if count == 0:
                    raise EOFError("a sender closed its connection")
                view = view[count:]

        pairs = zip(self._connections, parts, strict=True)
        _side_by_side([partial(fill, connection, part) for connection, part in pairs])

    def close(self) -> None:
        """Close the sockets of all connections."""
        for connection in self._connections:
            connection.close()
        self._connections = []


def _side_by_side(calls: Sequence[Callable[[], None]]) -> None:
    """One thread each; raises what the first that failed raised."""
    errors: list[BaseException] = []

    def run(call: Callable[[], None]) -> None:
        try:
            call()
        except (OSError, EOFError) as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(call,)) for call in calls[1:]]
    for thread in threads:
        thread.start()
    run(calls[0])
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
