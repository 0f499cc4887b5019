"""The sender's side of the rendezvous: rooms, and who is in them."""

import contextlib
import hmac
import json
import secrets
import select
import socket
import threading
import time
from typing import Any

from rollcall_runtime.sync.rendezvous import BROKEN, LENGTH, Address, frame

_MAX_FRAME = 16 << 20
_IDLE_SECONDS = 60.0  # a visitor that says nothing for so long is sent away
_LOOK_SECONDS = 0.02  # how often a waiting visitor's connection is looked at
_FULL_SECONDS = 0.01  # rest after an accept that failed


class _Room:
    def __init__(self) -> None:
        self.visitors = 0
        self.values: dict[str, str] = {}
        self.gone: int | None = None


class RendezvousServer:
    """Listens on `address` alone, on a port that the kernel picks.

    Each visitor has a thread, for as long as its join takes.
    """

    def __init__(self, address: str) -> None:
        self._listener = _listen(address)
        port = self._listener.getsockname()[1]
        self.address = Address(host=address, port=port, secret=secrets.token_hex(16))
        self._changed = threading.Condition()  # guards all that follows
        self._rooms: dict[str, _Room] = {}
        self._visitors: set[socket.socket] = set()
        self._closed = False
        self._thread = threading.Thread(target=self._accept, name="rendezvous", daemon=True)
        self._thread.start()

    @property
    def rooms(self) -> int:
        """Sessions in which somebody is."""
        with self._changed:
            return len(self._rooms)

    def close(self) -> None:
        """Send all visitors away; waits at most a second."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            for visitor in (self._listener, *self._visitors):
                with contextlib.suppress(OSError):  # it has gone already
                    visitor.shutdown(socket.SHUT_RDWR)
        self._thread.join(1.0)

    def _accept(self) -> None:
        with self._listener:
            while not self._closed:
                try:
                    visitor, _ = self._listener.accept()
                except OSError:  # closed, or out of descriptors for a while
                    time.sleep(_FULL_SECONDS)
                    continue
                threading.Thread(target=self._visit, args=(visitor,), daemon=True).start()

    def _visit(self, visitor: socket.socket) -> None:
        with visitor:
            visitor.settimeout(_IDLE_SECONDS)
            with self._changed:
                self._visitors.add(visitor)
            try:
                hello = _read(visitor)
                if not hmac.compare_digest(str(hello["secret"]), self.address.secret):
                    return
                self._host(str(hello["room"]), visitor)
            except (OSError, EOFError, ValueError, KeyError, TypeError):
                return  # it left, or is no member; either way its connection ends
            finally:
                with self._changed:
                    self._visitors.discard(visitor)

    def _host(self, name: str, visitor: socket.socket) -> None:
        with self._changed:
            room = self._rooms.setdefault(name, _Room())
            room.visitors += 1
        stays: int | None = None
        try:
            while not self._closed:
                request = _read(visitor)
                answer: dict[str, str] = {}
                if "put" in request:
                    self._put(room, request["put"])
                if "stay" in request:
                    stays = int(request["stay"])
                    visitor.settimeout(None)
                if "get" in request:
                    answer = self._get(room, request["get"], request["seconds"], visitor)
                visitor.sendall(frame(answer))
        finally:
            with self._changed:
                if stays is not None and room.gone is None:
                    room.gone = stays
                    self._changed.notify_all()
                room.visitors -= 1
                if room.visitors == 0:
                    del self._rooms[name]

    def _put(self, room: _Room, values: dict[str, str]) -> None:
        with self._changed:
            room.values.update(values)
            self._changed.notify_all()

    def _get(
        self, room: _Room, keys: list[str], seconds: float, visitor: socket.socket
    ) -> dict[str, str]:
        """Wait for all keys; what is missing after `seconds` is missing in the answer."""
        deadline = time.monotonic() + seconds

        def settled() -> bool:
            missing = any(key not in room.values for key in keys)
            return self._closed or not missing or room.gone is not None

        with self._changed:
            while not self._changed.wait_for(settled, min(seconds, _LOOK_SECONDS)):
                if time.monotonic() >= deadline:
                    break
                if _hung_up(visitor):
                    raise EOFError
            answer = {key: room.values[key] for key in keys if key in room.values}
            if len(answer) < len(keys) and room.gone is not None:
                answer[BROKEN] = str(room.gone)
            return answer


def _read(connection: socket.socket) -> dict[str, Any]:
    (length,) = LENGTH.unpack(_read_exactly(connection, LENGTH.size))
    if length > _MAX_FRAME:
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


def _listen(address: str) -> socket.socket:
    family = socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)[0][0]
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.bind((address, 0))
        listener.listen(1024)
    except OSError:
        listener.close()
        raise
    return listener
