"""Follows the coordinator's stream of serving rollouts, also when another pod is coordinator."""

import asyncio
import logging
import time
from collections.abc import Callable

import aiohttp

from rollcall_protocol.wire.bounded_lines import BoundedLines, LineBounds
from rollcall_protocol.wire.json_codec import CodecError
from rollcall_protocol.wire.messages import loads
from rollcall_protocol.wire.serving_rollouts import ServingRollouts
from rollcall_runtime.membership.refused_token import RefusalPatience
from rollcall_runtime.worker.backoff import BackoffDelays
from rollcall_runtime.worker.http_client import plain_session
from rollcall_runtime.worker.identity.own_tokens import TokenSource, bearer
from rollcall_runtime.worker.identity.tls import TlsContext
from rollcall_runtime.worker.name_look_ups import NameLookUps

log = logging.getLogger(__name__)

OPEN_SECONDS = 5.0
SILENT_SECONDS = 15.0  # the coordinator sends an empty line each 5 s
FIRST_DELAY, LONGEST_DELAY = 0.1, 2.0  # seconds between attempts
BOUNDS = LineBounds(longest=1 << 22, nbytes=64 << 20, bytes_each_second=8 << 20)


class RolloutStream:
    """Calls `changed` with each list that comes. Without a stream the last list holds: rollouts
    serve on while the coordinator restarts. `tls` is for an https `url`.
    """

    def __init__(
        self,
        *,
        url: str,
        token: TokenSource,
        tls: TlsContext,
        changed: Callable[[ServingRollouts], None],
    ) -> None:
        self._url, self._token, self._tls, self._changed = url, token, tls, changed
        self.connected = False

    async def run(self) -> None:
        """Keep a stream open until cancelled.

        CredentialsRefusedError if the token, which each attempt reads anew, is refused for long.
        """
        patience = RefusalPatience(self._url)
        delays = BackoffDelays(first=FIRST_DELAY, longest=LONGEST_DELAY)
        times = aiohttp.ClientTimeout(
            total=None, sock_connect=OPEN_SECONDS, sock_read=SILENT_SECONDS
        )
        async with plain_session(
            connector=NameLookUps().connector(),
            timeout=times,
        ) as session:
            while True:
                try:
                    await self._follow(session, patience, delays)
                    reason = "ended by the coordinator"
                except (
                    aiohttp.ClientError,
                    TimeoutError,
                    OSError,
                    CodecError,
                    ValueError,
                ) as error:
                    reason = f"{type(error).__name__}: {error}"
                    if getattr(error, "status", None) in {401, 403}:
                        patience.refused(reason)
                finally:
                    self.connected = False
                log.info("no stream of rollouts from the coordinator: %s", reason)
                await asyncio.sleep(delays.next_delay())

    async def _follow(
        self, session: aiohttp.ClientSession, patience: RefusalPatience, delays: BackoffDelays
    ) -> None:
        headers, tls = bearer(self._token()), self._tls()
        async with session.get(self._url, headers=headers, ssl=tls) as answer:
            answer.raise_for_status()
            patience.accepted()
            lines = BoundedLines(BOUNDS, time.monotonic())
            async for piece in answer.content.iter_any():
                for line in lines.take(piece, time.monotonic()):
                    self._changed(loads(line, ServingRollouts))
                self.connected = True
                delays.reset()
