"""Where the members of a session meet: a key-value store that the sender hosts on its own address.

Each session has a prefix of its own (the store's nonce, the group, the session's id), so nothing of
another session, or of another sender that had the same address before, can match.
"""

import json
import secrets
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from torch._C._distributed_c10d import PrefixStore, TCPStore

from rollcall_protocol.messages import Seat
from rollcall_runtime.sync.engine import descriptor_bytes
from rollcall_runtime.sync.errors import JoinFailedError

_POLL_SECONDS = 0.005  # how often a member looks whether all seats are taken
_STORE_SECONDS = 10.0  # for one request to a store that answers


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """Where a sender's store listens; part of the sender's descriptor."""

    host: str
    port: int
    nonce: str

    @classmethod
    def of(cls, seat: Seat) -> "StoreAddress":
        """Read the descriptor of a sender's seat; raises JoinFailedError."""
        try:
            host, port, nonce = json.loads(descriptor_bytes(seat))["store"]
            return cls(host=str(host), port=int(port), nonce=str(nonce))
        except (ValueError, KeyError, TypeError) as error:
            reason = f"not a sender's descriptor: {error!r}"
            raise JoinFailedError(reason, peer=seat.member) from error

    def descriptor(self) -> bytes:
        """What `of` reads."""
        return json.dumps({"store": [self.host, self.port, self.nonce]}).encode()


class StoreHost:
    """The sender's store. It listens on `address` alone, on a port that the kernel picks."""

    def __init__(self, address: str) -> None:
        listener = _listen(address)
        port = listener.getsockname()[1]
        self.address = StoreAddress(host=address, port=port, nonce=secrets.token_hex(8))
        self._store = TCPStore(
            address,
            port,
            is_master=True,
            wait_for_workers=False,
            timeout=timedelta(seconds=_STORE_SECONDS),
            use_libuv=False,  # torch 2.6's libuv store takes no listening socket
            master_listen_fd=listener.detach(),
        )
        # A member that comes too late writes keys again, so the last sessions are swept again.
        self._spent: deque[tuple[str, int]] = deque(maxlen=4)
        self._lock = threading.Lock()

    @property
    def keys(self) -> int:
        """How many keys the store holds."""
        return self._store.num_keys()

    def forget(self, prefix: str, size: int) -> None:
        """Delete what a session of `size` members left in the store."""
        with self._lock:
            self._spent.append((prefix, size))
            for old, count in self._spent:
                for rank in range(count):
                    self._store.delete_key(f"{old}/0/{rank}")  # written by gloo
                    self._store.delete_key(f"{old}/{_seat_key(rank)}")


@dataclass(frozen=True, slots=True)
class Meeting:
    """One member's way to the others of its session.

    `rest(seconds)` waits a little, and raises when the session was given up.
    """

    name: str
    seats: Sequence[Seat]
    rank: int
    rest: Callable[[float], None]

    @property
    def prefix(self) -> str:
        """The keys of this session start with it; raises JoinFailedError for a bad descriptor."""
        return f"{StoreAddress.of(self.seats[0]).nonce}/{self.name}"

    def join(self, deadline: float) -> PrefixStore:
        """Come together with the other seats; the session's own part of the sender's store.

        Raises JoinFailedError at `deadline` (monotonic clock), naming an empty seat.
        """
        store = PrefixStore(self.prefix, self._connect(deadline))
        keys = [_seat_key(rank) for rank in range(len(self.seats))]
        try:
            # Looked for here because the transport's own wait can neither be interrupted nor
            # tells who is missing.
            store.set(keys[self.rank], str(self.seats[self.rank].member))
            while not store.check(keys):
                if time.monotonic() >= deadline:
                    raise self._empty([not store.check([key]) for key in keys])
                self.rest(_POLL_SECONDS)
        except RuntimeError as error:
            raise self._unreachable(error) from error
        return store

    def _connect(self, deadline: float) -> TCPStore:
        """A connection of this session's own: a wait on a shared one would block the others."""
        address = StoreAddress.of(self.seats[0])
        self._reach(address, deadline)
        try:
            return TCPStore(
                address.host,
                address.port,
                is_master=False,
                wait_for_workers=False,
                timeout=timedelta(seconds=_STORE_SECONDS),
                use_libuv=False,
            )
        except RuntimeError as error:
            raise self._unreachable(error) from error

    def _reach(self, address: StoreAddress, deadline: float) -> None:
        """Try the port first: the store's own connect cannot be interrupted, and logs at length."""
        while True:
            self.rest(0)
            left = max(deadline - time.monotonic(), 0.001)
            try:
                socket.create_connection((address.host, address.port), timeout=left).close()
            except OSError as error:
                if time.monotonic() + _POLL_SECONDS >= deadline:
                    raise self._unreachable(error) from error
                self.rest(_POLL_SECONDS)
            else:
                return

    def _empty(self, empty: Sequence[bool]) -> JoinFailedError:
        missing = [seat.member for seat, gone in zip(self.seats, empty, strict=True) if gone]
        reason = f"{self.name}: {len(missing)} of {len(self.seats)} seats stayed empty"
        return JoinFailedError(reason, peer=missing[0] if missing else None)

    def _unreachable(self, error: Exception) -> JoinFailedError:
        reason = f"{self.name}: the sender's store cannot be reached: {first_line(error)}"
        return JoinFailedError(reason, peer=self.seats[0].member)


def first_line(error: Exception) -> str:
    """A library's message without the stack that it appends."""
    return str(error).partition("\n")[0]


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


def _seat_key(rank: int) -> str:
    return f"seat/{rank}"
