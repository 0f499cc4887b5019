"""The server's side of a rendezvous: one key-value table per session.

A request is an object that may store values (`put`), count (`add`), wait for keys (`get`, for at
most `seconds`) and have this client's disconnection reported (`report_disconnect_of`); the answer
has the values and counts that were asked for.
"""

import contextlib
import hmac
import json
import logging
import secrets
import select
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from rollcall_runtime.sync.rendezvous_connection import (
    CONFIRMED,
    DISCONNECTED,
    LENGTH,
    RendezvousAddress,
    decode_value,
    encode_frame,
    encode_value,
)
from rollcall_runtime.worker.log_rate import REPEATED

log = logging.getLogger(__name__)

_MAX_FRAME_BYTES = 16 << 20
_MAX_HELLO_BYTES = 4 << 10  # the first frame of any client, which may know no secret
_HELLO_SECONDS = 10.0  # until the whole of it is there
_MAX_UNAUTHENTICATED = 256  # clients that have not proved that they know the secret
_MAX_STRANGERS_OF_PEER = 128  # of one address: a trainer's pod has up to 64 ranks
_IDLE_SECONDS = 60.0  # a client that sends nothing for so long is disconnected
_HANGUP_POLL_SECONDS = 0.02  # how often a waiting client's connection is checked
_ACCEPT_RETRY_SECONDS = 0.01  # after an accept that failed


class _SessionTable:
    def __init__(self) -> None:
        self.clients = 0
        self.values: dict[str, str] = {}
        self.disconnected: int | None = None


class RendezvousServer:
    """Listens on `address` alone, on `port` or one that the kernel picks, or by `listener`.

    `secret` is what clients must know, a random one by default; `admit` judges the secrets of
    clients instead, in any thread. Each client has a thread, for as long as it is connected.
    `refused` is called, in any thread, with the kind of what was refused before that.
    """

    def __init__(
        self,
        address: str,
        *,
        port: int = 0,
        listener: socket.socket | None = None,
        secret: str = "",
        admit: Callable[[str], bool] | None = None,
        refused: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._refused = refused
        self._listener = listener or _listen(address, port)
        self._knows = admit or self._is_own_secret
        self.address = RendezvousAddress(
            host=address,
            port=self._listener.getsockname()[1],
            secret=secret or secrets.token_hex(16),
        )
        self._changed = threading.Condition()  # guards all that follows
        self._tables: dict[str, _SessionTable] = {}
        self._clients: set[socket.socket] = set()
        self._unauthenticated: dict[
            socket.socket, str
        ] = {}  # and their hosts, in the order of arrival
        self._closed = False
        self._thread = threading.Thread(target=self._accept, name="rendezvous", daemon=True)
        self._thread.start()

    @property
    def sessions(self) -> int:
        """How many sessions have a connected client."""
        with self._changed:
            return len(self._tables)

    def confirm(self, session: str) -> None:
        """Tell the clients of `session` that the sender's own join ended well."""
        with self._changed:
            if session in self._tables:
                self._tables[session].values[CONFIRMED] = ""
                self._changed.notify_all()

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
                    client, place = self._listener.accept()
                except OSError:  # closed, or out of descriptors for a while
                    time.sleep(_ACCEPT_RETRY_SECONDS)
                    continue
                self._admit(client, str(place[0]))
                try:
                    threading.Thread(target=self._serve, args=(client,), daemon=True).start()
                except RuntimeError as error:  # no thread is to be had; others must still be served
                    log.warning("refused a client of the rendezvous: %s", error, extra=REPEATED)
                    self._end(client)
                    client.close()

    def _admit(self, client: socket.socket, host: str) -> None:
        """Of too many unauthenticated clients the first is disconnected: a member is quicker."""
        with self._changed:
            self._unauthenticated[client] = host
            same = [other for other, its in self._unauthenticated.items() if its == host]
            if len(same) > _MAX_STRANGERS_OF_PEER:
                oldest = same[0]
            elif len(self._unauthenticated) > _MAX_UNAUTHENTICATED:
                oldest = next(iter(self._unauthenticated))
            else:
                return
            del self._unauthenticated[oldest]
            with contextlib.suppress(OSError):  # it is disconnected already
                oldest.shutdown(socket.SHUT_RDWR)
        self._refused("slow_hello")

    def _end(self, client: socket.socket) -> None:
        with self._changed:
            self._clients.discard(client)
            self._unauthenticated.pop(client, None)

    def _serve(self, client: socket.socket) -> None:
        with client:
            with self._changed:
                self._clients.add(client)
            try:
                session = self._session_of(client)
                if session is None:
                    return
                client.settimeout(_IDLE_SECONDS)
                self._serve_session(session, client)
            except (OSError, EOFError, ValueError, KeyError, TypeError, RecursionError):
                return  # it disconnected, or is no member; either way its connection ends
            finally:
                self._end(client)

    def _session_of(self, client: socket.socket) -> str | None:
        """The session that a client may enter; None, which is counted, without the secret."""
        deadline = time.monotonic() + _HELLO_SECONDS
        try:
            hello = _read_frame(client, limit=_MAX_HELLO_BYTES, deadline=deadline)
            secret, session = _text(hello["secret"]), _text(hello["session"])
        except TimeoutError:
            self._refused("slow_hello")
            return None
        except (ValueError, KeyError, TypeError, RecursionError):
            self._refused("malformed")
            return None
        if not self._knows(secret):
            return None
        with self._changed:
            self._unauthenticated.pop(client, None)
        return session

    def _is_own_secret(self, given: str) -> bool:
        known = hmac.compare_digest(given.encode(), self.address.secret.encode())
        if not known:
            self._refused("wrong_secret")
        return known

    def _serve_session(self, name: str, client: socket.socket) -> None:
        with self._changed:
            table = self._tables.setdefault(name, _SessionTable())
            table.clients += 1
        reported: int | None = None
        try:
            while not self._closed:
                request = _read_frame(client)
                answer: dict[str, str] = {}
                _refuse_confirmation(request)
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


def _read_frame(
    connection: socket.socket, *, limit: int = _MAX_FRAME_BYTES, deadline: float | None = None
) -> dict[str, Any]:
    """TimeoutError unless the whole frame is there before `deadline` (monotonic)."""
    (length,) = LENGTH.unpack(_read_exactly(connection, LENGTH.size, deadline))
    if length > limit:
        raise ValueError(f"a frame of {length} bytes")
    body = json.loads(_read_exactly(connection, length, deadline))
    if not isinstance(body, dict):
        raise ValueError("not an object")  # noqa: TRY004 - a bad message, not a bug
    return body


def _refuse_confirmation(request: dict[str, Any]) -> None:
    """A member that could confirm a join could make others say that they joined."""
    if CONFIRMED in request.get("put", ()) or CONFIRMED in request.get("add", ()):
        raise ValueError(f"a client stores {CONFIRMED!r}")


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.isprintable():
        raise ValueError("no printable text")
    return value


def _read_exactly(connection: socket.socket, size: int, deadline: float | None) -> bytes:
    parts = b""
    while len(parts) < size:
        if deadline is not None:
            connection.settimeout(max(deadline - time.monotonic(), 0.001))
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
