"""Detects that the other end of a stream is silent, however busy this end is.

The sign of life is bytes, not whole messages: part of a long manifest is one, too.
"""

import asyncio
import time
from collections.abc import Callable
from typing import NoReturn, cast


class SilentError(ConnectionError):
    """Nothing arrived for as long as the bound."""


class LivenessMonitor:
    """Records when bytes arrive on `transport`; `suspect_after` is the bound, seconds.

    `last_received_at`: when the last bytes, or the end of the stream, arrived (time.monotonic).
    """

    def __init__(self, transport: asyncio.Transport, *, suspect_after: float) -> None:
        self.last_received_at = time.monotonic()
        self._transport, self._bound = transport, suspect_after
        transport.set_protocol(_Tap(cast("asyncio.Protocol", transport.get_protocol()), self._note))

    async def watch(self) -> NoReturn:
        """Raise SilentError when nothing has arrived for the bound.

        An event loop that was held up looks at its sockets before its timers, so that what has
        arrived meanwhile counts.
        """
        while True:
            left = self.last_received_at + self._bound - time.monotonic()
            if left <= 0:
                raise SilentError(f"nothing heard for {self._bound:g} s")
            await asyncio.sleep(left)

    def abort(self) -> None:
        """Drop the connection: a close would wait for what cannot be sent any more."""
        self._transport.abort()

    def _note(self) -> None:
        self.last_received_at = time.monotonic()


class _Tap(asyncio.Protocol):
    """Hands everything on to the protocol that was there before."""

    def __init__(self, inner: asyncio.Protocol, heard: Callable[[], None]) -> None:
        self._inner, self._heard = inner, heard

    def data_received(self, data: bytes) -> None:
        self._heard()
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        self._heard()
        return self._inner.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            self._heard()
        self._inner.connection_lost(exc)

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()
