"""The server's side of a rendezvous: one key-value table per session.

A request is an object that may store values (`put`), count (`add`), wait for keys (`get`, for at
most `seconds`) and have this client's disconnection reported (`report_disconnect_of`); the answer
has the values and counts that were asked for.
"""

import contextlib
import hmac
import json
import secrets
import select
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from rollcall_runtime.sync.rendezvous_connection import (
    DISCONNECTED,
    LENGTH,
    RendezvousAddress,
    decode_value,
    encode_frame,
    encode_value,
)

_MAX_FRAME_BYTES = 16 << 20
_MAX_HELLO_BYTES = 4 << 10  # the first frame of a client that may be a stranger
_HELLO_SECONDS = 10.0
_MAX_STRANGERS = 64  # clients that have not proved that they know the secret
_IDLE_SECONDS = 60.0  # a client that sends nothing for so long is disconnected
_HANGUP_POLL_SECONDS = 0.02  # how often a waiting client's connection is checked
_ACCEPT_RETRY_SECONDS = 0.01  # after an accept that failed


class _SessionTable:
    def __init__(self) -> None:
        self.clients = 0
        self.values: dict[str, str] = {}
        self.disconnected: int | None = None


class RendezvousServer:
    """Listens on `address` alone, on `port` or one that the kernel picks.

    `secret` is what clients must know, a random one by default; `admit` judges the secrets of
    clients instead, in any thread. Each client has a thread, for as long as it is connected.
    """

    def __init__(
        self,
        address: str,
        *,
        port: int = 0,
        secret: str = "",
        admit: Callable[[str], bool] | None = None,
    ) -> None:
        self._listener = _listen(address, port)
        self._knows = admit or self._is_own_secret
        self.address = RendezvousAddress(
            host=address,
            port=self._listener.getsockname()[1],
            secret=secret or secrets.token_hex(16),
        )
        self._changed = threading.Condition()  # guards all that follows
        self._tables: dict[str, _SessionTable] = {}
        self._clients: set[socket.socket] = set()
        self._strangers: dict[socket.socket, None] = {}  # in the order of their arrival
        self._closed = False
        self._thread = threading.Thread(target=self._accept, name="rendezvous", daemon=True)
        self._thread.start()

    @property
    def sessions(self) -> int:
        """How many sessions have a connected client."""
        with self._changed:
            return len(self._tables)

    def close(self) -> None:
        """Disconnect all clients; waits at most a second."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            for connection in (self._listener, *self._clients):
                with contextlib.suppress(OSError):  # it is disconnected already
                    connection.shutdown(socket.SHUT_RDWR)
        self._thread.join(1.0)

    def _accept(self) -> None:
        with self._listener:
            while not self._closed:
                try:
                    client, _ = self._listener.accept()
                except OSError:  # closed, or out of descriptors for a while
                    time.sleep(_ACCEPT_RETRY_SECONDS)
                    continue
                self._admit(client)
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _admit(self, client: socket.socket) -> None:
        """Of too many strangers the one that came first is disconnected: a member is quicker."""
        with self._changed:
            self._strangers[client] = None
            if len(self._strangers) > _MAX_STRANGERS:
                oldest = next(iter(self._strangers))
                del self._strangers[oldest]
                with contextlib.suppress(OSError):  # it is disconnected already
                    oldest.shutdown(socket.SHUT_RDWR)

    def _serve(self, client: socket.socket) -> None:
        with client:
            client.settimeout(_HELLO_SECONDS)
            with self._changed:
                self._clients.add(client)
            try:
                hello = _read_frame(client, limit=_MAX_HELLO_BYTES)
                if not self._knows(str(hello["secret"])):
                    return
                with self._changed:
                    self._strangers.pop(client, None)
                client.settimeout(_IDLE_SECONDS)
                self._serve_session(str(hello["session"]), client)
            except (OSError, EOFError, ValueError, KeyError, TypeError, RecursionError):
                return  # it disconnected, or is no member; either way its connection ends
            finally:
                with self._changed:
                    self._clients.discard(client)
                    self._strangers.pop(client, None)

    def _is_own_secret(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self.address.secret.encode())

    def _serve_session(self, name: str, client: socket.socket) -> None:
        with self._changed:
            table = self._tables.setdefault(name, _SessionTable())
            table.clients += 1
        reported: int | None = None
        try:
            while not self._closed:
                request = _read_frame(client)
                answer: dict[str, str] = {}
                if "put" in request:
                    self._put(table, request["put"])
                if "add" in request:
                    answer = self._add(table, request["add"])
                if "report_disconnect_of" in request:
                    reported = int(request["report_disconnect_of"])
                    client.settimeout(None)
                if "get" in request:
                    answer |= self._get(table, request["get"], request["seconds"], client)
                client.sendall(encode_frame(answer))
        finally:
            with self._changed:
                if reported is not None and table.disconnected is None:
                    table.disconnected = reported
                    self._changed.notify_all()
                table.clients -= 1
                if table.clients == 0:
                    del self._tables[name]

    def _put(self, table: _SessionTable, values: dict[str, str]) -> None:
        with self._changed:
            table.values.update(values)
            self._changed.notify_all()

    def _add(self, table: _SessionTable, counts: dict[str, int]) -> dict[str, str]:
        """Count in the value of each key, decimal digits that begin at 0; the new values."""
        answer = {}
        with self._changed:
            for key, count in counts.items():
                stored = table.values.get(key)
                total = (int(decode_value(stored)) if stored is not None else 0) + count
                answer[key] = table.values[key] = encode_value(str(total).encode())
            self._changed.notify_all()
        return answer

    def _get(
        self, table: _SessionTable, keys: list[str], seconds: float, client: socket.socket
    ) -> dict[str, str]:
        """Wait for all keys; the answer lacks those that are not stored after `seconds`."""
        deadline = time.monotonic() + seconds

        def settled() -> bool:
            missing = any(key not in table.values for key in keys)
            return self._closed or not missing or table.disconnected is not None

        with self._changed:
            while not self._changed.wait_for(settled, min(seconds, _HANGUP_POLL_SECONDS)):
                if time.monotonic() >= deadline:
                    break
                if _hung_up(client):
                    raise EOFError
            answer = {key: table.values[key] for key in keys if key in table.values}
            if len(answer) < len(keys) and table.disconnected is not None:
                answer[DISCONNECTED] = str(table.disconnected)
            return answer


def _read_frame(connection: socket.socket, *, limit: int = _MAX_FRAME_BYTES) -> dict[str, Any]:
    (length,) = LENGTH.unpack(_read_exactly(connection, LENGTH.size))
    if length > limit:
        raise ValueError(f"a frame of {length} bytes")
    body = json.loads(_read_exactly(connection, length))
    if not isinstance(body, dict):
        raise ValueError("not an object")  # noqa: TRY004 - a bad message, not a bug
    return body


def _read_exactly(connection: socket.socket, size: int) -> bytes:
    parts = b""
    while len(parts) < size:
        part = connection.recv(min(size - len(parts), 1 << 16))
        if not part:
            raise EOFError
        parts += part
    return parts


def _hung_up(connection: socket.socket) -> bool:
    readable = select.poll()
    readable.register(connection, select.POLLIN)
    return bool(readable.poll(0)) and not connection.recv(1, socket.MSG_PEEK)


def _listen(address: str, port: int) -> socket.socket:
    family = socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)[0][0]
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        # A port of one's own choice may still have closed connections of an earlier process.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen(1024)
    except OSError:
        listener.close()
        raise
    return listener
