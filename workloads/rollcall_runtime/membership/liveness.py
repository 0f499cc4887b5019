"""Detects that the other end of a stream is silent, however busy this end is.

The sign of life is bytes, not whole messages: part of a long manifest is one, too. How long the
other end may be silent stretches with how late this end runs, and with how long others were silent
that are heard again (`SilenceBound`).

aiohttp's `heartbeat=` is no substitute. It pings after two thirds of the same bound and waits for
one third: peers stopped for 0.6 s of a bound of 1 s lost 101 of 200 links, with this monitor none
(docs/measurements/history/silent-link.md). Its close waits for the bytes that are queued.
"""

import asyncio
import time
from collections.abc import Callable
from typing import NoReturn, cast

from rollcall_protocol.membership.stretched_bounds import SilenceBound


class SilentError(ConnectionError):
    """No bytes arrived for the bound."""


async def watch_silence(
    bound: SilenceBound, received_at: Callable[[], float], *, grace: float = 0.0
) -> NoReturn:
    """Raise SilentError once `received_at()` (time.monotonic) is longer ago than `bound` allows.

    `grace`: seconds after each wait in which is read what arrived while this process stood still.
    """
    while True:
        began = time.monotonic()
        longest = bound.seconds(began)
        left = min(received_at() + longest - began, bound.setting)
        if left <= 0:
            raise SilentError(f"nothing received for {round(longest, 1):g} s")
        await asyncio.sleep(left)
        woke = time.monotonic()
        bound.late(woke - began - left, woke)
        if grace:
            await asyncio.sleep(grace)


class LivenessMonitor:
    """Records when bytes arrive on `transport`; several streams may share a `bound`.

    `last_received_at`: when the last bytes, or the end of the stream, arrived (time.monotonic).
    """

    def __init__(self, transport: asyncio.Transport, bound: SilenceBound) -> None:
        self.last_received_at = time.monotonic()
        self._transport, self._bound = transport, bound
        transport.set_protocol(
            _Tap(cast("asyncio.Protocol", transport.get_protocol()), self._received)
        )

    async def watch(self) -> NoReturn:
        """Raise SilentError when no bytes arrived for the bound.

        An event loop that was blocked reads its sockets before it runs its timers, so that bytes
        that arrived meanwhile count.
        """
        await watch_silence(self._bound, lambda: self.last_received_at)

    def abort(self) -> None:
        """Drop the connection; a close would wait until the peer reads what is queued."""
        self._transport.abort()

    def _received(self) -> None:
        now = time.monotonic()
        self._bound.silent(now - self.last_received_at, now)
        self.last_received_at = now


class _Tap(asyncio.Protocol):
    """Reports arrivals, and passes every call on to the protocol that was installed before."""

    def __init__(self, inner: asyncio.Protocol, received: Callable[[], None]) -> None:
        self._inner, self._on_bytes = inner, received

    def data_received(self, data: bytes) -> None:
        self._on_bytes()
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        self._on_bytes()
        return self._inner.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            self._on_bytes()
        self._inner.connection_lost(exc)

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()
