"""How the ranks of a trainer meet: a torch store over the authenticated rendezvous of rank 0.

Not torch's TCPStore, which serves every client that connects: one that is no rank could take a
rank's place. Here a client must know the secret. Tried with gloo groups, subgroups and device
meshes.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
from typing import TYPE_CHECKING

from torch.distributed import Store  # type: ignore[attr-defined]

from rollcall_runtime.sync.rendezvous_connection import (
    DISCONNECTED,
    RendezvousAddress,
    RendezvousConnection,
    decode_value,
    get_request,
    put_request,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta
    from typing import Any

_SESSION = "trainer"
_ROSTER = "roster"
_EXCHANGE_SECONDS = 30.0  # for a request that waits for nothing


class RendezvousStore(Store):
    """The store of one rank; other threads may use it too. Meeting is collective.

    A wait ends after `timeout` seconds, and at once when a rank that had met the others
    disconnects. RuntimeError if ranks stay away or rank 0 refuses this process.
    """

    def __init__(self, address: RendezvousAddress, *, rank: int, size: int, timeout: float) -> None:
        super().__init__()
        self._timeout = timeout
        self._lock = threading.Lock()
        deadline = time.monotonic() + timeout
        try:
            self._connection = RendezvousConnection(address, session=_SESSION, deadline=deadline)
        except OSError as error:
            raise RuntimeError(f"rank {rank} cannot reach rank 0 at {address}: {error}") from error
        try:
            self._meet(rank, size, deadline)
        except BaseException:
            self.close()
            raise

    def _meet(self, rank: int, size: int, deadline: float) -> None:
        """Wait for all ranks. Of two processes that claim one rank the later one takes part."""
        own = secrets.token_hex(8)
        keys = [f"rank/{other}" for other in range(size)]
        answer = self._exchange(
            put_request({keys[rank]: own.encode()})
            | get_request(keys if rank == 0 else [_ROSTER], deadline),
            deadline,
        )
        if rank == 0:
            absent = [number for number, key in enumerate(keys) if key not in answer]
            if absent:
                raise RuntimeError(
                    f"timed out after {self._timeout:g} s waiting for ranks {absent} of {size}"
                )
            roster = [decode_value(answer[key]).decode() for key in keys]
            self.set(_ROSTER, json.dumps(roster).encode())
        elif _ROSTER not in answer:
            raise RuntimeError(f"timed out after {self._timeout:g} s waiting for the other ranks")
        elif json.loads(decode_value(answer[_ROSTER]))[rank] != own:
            raise RuntimeError(f"another process is rank {rank}; this one came too late")
        self._exchange({"report_disconnect_of": rank}, deadline)

    def set(self, key: str, value: bytes) -> None:  # type: ignore[override]  # torch gives bytes
        self._exchange(put_request({key: value}), time.monotonic() + _EXCHANGE_SECONDS)

    def get(self, key: str) -> bytes:
        return self._wait([key], self._timeout)[0]

    def add(self, key: str, value: int) -> int:
        answer = self._exchange({"add": {key: value}}, time.monotonic() + _EXCHANGE_SECONDS)
        return int(decode_value(answer[key]))

    def check(self, keys: list[str]) -> bool:
        now = time.monotonic()
        answer = self._exchange(get_request(keys, now), now + _EXCHANGE_SECONDS)
        return all(key in answer for key in keys)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        self._wait(keys, self._timeout if timeout is None else timeout.total_seconds())

    def clone(self) -> Store:
        """Itself, as it may be used by several threads."""
        return self

    def close(self) -> None:
        """Disconnect; the waits of the other ranks fail."""
        self._connection.close()

    def _wait(self, keys: Sequence[str], seconds: float) -> list[bytes]:
        deadline = time.monotonic() + seconds
        answer = self._exchange(get_request(keys, deadline), deadline)
        missing = [key for key in keys if key not in answer]
        if missing and DISCONNECTED in answer:
            raise RuntimeError(f"rank {answer[DISCONNECTED]} disconnected")
        if missing:
            raise RuntimeError(f"timed out after {seconds:g} s waiting for {missing[0]!r}")
        return [decode_value(answer[key]) for key in keys]

    def _exchange(self, request: dict[str, Any], deadline: float) -> dict[str, str]:
        with self._lock:
            self._connection.deadline = deadline
            try:
                return self._connection.exchange(request)
            except OSError as error:
                reason = f"{type(error).__name__}: {error}"
                raise RuntimeError(f"the rendezvous of rank 0 failed: {reason}") from error
