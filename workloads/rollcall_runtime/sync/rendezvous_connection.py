"""A client's connection to a rendezvous: frames of JSON, deadlines, and the secret at the start.

`rendezvous_server` is the other side. What the requests mean is said there.
"""

import json
import socket
import struct
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

LENGTH = struct.Struct(">I")  # of the frame that follows
CONFIRMED = "confirmed"  # the key that the sender alone may store: its own join ended well
DISCONNECTED = "disconnected"  # in an answer: the rank whose disconnection was reported
_LATE_SECONDS = 0.2  # how much later than its deadline an answer may arrive
_POLL_SECONDS = 0.01  # how often a blocked client checks whether its caller gave up


@dataclass(frozen=True, slots=True)
class RendezvousAddress:
    """Where a rendezvous listens, and the secret that it asks for."""

    host: str
    port: int
    secret: str = field(repr=False)


class RendezvousConnection:
    """One client's connection to the table of `session`. Used by one thread at a time.

    Connecting is tried again until `deadline` (monotonic), which bounds every call and may be
    moved. `sleep(seconds)` is called while waiting, and raises when the caller gave up. All methods
    raise OSError when the server cannot be reached or refuses the secret.
    """

    def __init__(
        self,
        address: RendezvousAddress,
        *,
        session: str,
        deadline: float,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.deadline = deadline
        self._sleep = sleep
        self._received = b""
        self._socket = self._connect(address)
        try:
            self._send({"secret": address.secret, "session": session})
        except OSError:
            self.close()
            raise

    def exchange(self, request: dict[str, Any]) -> dict[str, str]:
        """Send a request and wait for its answer."""
        self._send(request)
        (length,) = LENGTH.unpack(self._receive(LENGTH.size))
        answer: dict[str, str] = json.loads(self._receive(length))
        return answer

    def close(self) -> None:
        """Close the socket; the server sees that this client has left."""
        self._socket.close()

    def _connect(self, address: RendezvousAddress) -> socket.socket:
        while True:
            self._sleep(0)
            left = max(self.deadline - time.monotonic(), 0.001)
            try:
                return socket.create_connection((address.host, address.port), timeout=left)
            except OSError:
                if time.monotonic() + _POLL_SECONDS >= self.deadline:
                    raise
                self._sleep(_POLL_SECONDS)

    def _send(self, request: dict[str, Any]) -> None:
        self._socket.settimeout(max(self.deadline - time.monotonic(), _LATE_SECONDS))
        self._socket.sendall(encode_frame(request))

    def _receive(self, size: int) -> bytes:
        self._socket.settimeout(_POLL_SECONDS)
        while len(self._received) < size:
            self._sleep(0)
            try:
                part = self._socket.recv(1 << 16)
            except TimeoutError:
                if time.monotonic() > self.deadline + _LATE_SECONDS:
                    raise
                continue
            if not part:
                raise ConnectionError("the server closed the connection")
            self._received += part
        head, self._received = self._received[:size], self._received[size:]
        return head


def put_request(values: Mapping[str, bytes]) -> dict[str, Any]:
    """A request, or a part of one, that stores `values`."""
    return {"put": {key: encode_value(value) for key, value in values.items()}}


def get_request(keys: Sequence[str], deadline: float) -> dict[str, Any]:
    """A request, or a part of one, that waits for `keys` until `deadline` (monotonic)."""
    return {"get": list(keys), "seconds": max(deadline - time.monotonic(), 0.0)}


def encode_value(value: bytes) -> str:
    """A value as requests and answers have it."""
    return b64encode(value).decode()


def decode_value(value: str) -> bytes:
    """A value as it was stored, from an answer."""
    return b64decode(value)


def encode_frame(body: dict[str, Any]) -> bytes:
    """A message as it travels: its length, then JSON."""
    text = json.dumps(body).encode()
    return LENGTH.pack(len(text)) + text
