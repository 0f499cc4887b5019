"""The turns of trajectories, which the coordinator keeps for all pods of the front."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import aiohttp

from rollcall_protocol.wire.json_codec import CodecError, decode, parse, to_json
from rollcall_protocol.wire.trajectories import TrajectoryTurn, TurnVerdict
from rollcall_runtime.membership.long_messages import parsed
from rollcall_runtime.worker.backoff import BackoffDelays
from rollcall_runtime.worker.http_client import plain_session
from rollcall_runtime.worker.identity.own_tokens import TokenSource, bearer
from rollcall_runtime.worker.name_look_ups import NameLookUps

if TYPE_CHECKING:
    from rollcall_runtime.worker.identity.tls import TlsContext

REACH_SECONDS = 10.0  # for a request to the coordinator, with all attempts
ATTEMPT_SECONDS = 5.0
FIRST_DELAY, LONGEST_DELAY = 0.05, 1.0
LONGEST_TURNS = 1 << 28  # bytes
_FINAL = {400, 409, 410, 413}


class TrajectoryGoneError(RuntimeError):
    """The coordinator keeps no turns of a trajectory any more; `why` it is."""

    def __init__(self, why: TurnVerdict) -> None:
        super().__init__(why.value)
        self.why = why


class TurnStore:
    """Asks the coordinator at `url`. Each method raises TimeoutError after REACH_SECONDS without
    an answer. Belongs to one event loop.
    """

    def __init__(self, *, url: str, token: TokenSource, tls: TlsContext) -> None:
        self._url, self._token, self._tls = url, token, tls
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Close connections."""
        if self._session is not None:
            await self._session.close()

    async def since(self, name: str, number: int) -> tuple[TrajectoryTurn, ...]:
        """The turns of `name` from `number` on. TrajectoryGoneError."""
        asked = {"trajectory": name, "since": str(number)}
        status, body = await self._ask("GET", asked)
        if status != 200:
            raise TrajectoryGoneError(_verdict(body))
        return await parsed(body, _turns)

    async def add(self, turn: TrajectoryTurn) -> bool:
        """Keep a turn; False if another one has its number. TrajectoryGoneError."""
        status, body = await self._ask("POST", {}, to_json(turn))
        verdict = TurnVerdict.BAD_TURN if status == 413 else _verdict(body)
        if verdict not in {TurnVerdict.KEPT, TurnVerdict.BEHIND}:
            raise TrajectoryGoneError(verdict)
        return verdict is TurnVerdict.KEPT

    async def end(self, name: str) -> None:
        """Drop the turns of `name`."""
        await self._ask("DELETE", {"trajectory": name})

    async def _ask(self, method: str, query: dict[str, str], body: str = "") -> tuple[int, bytes]:
        """Status and body of an answer that another attempt would not change."""
        delays = BackoffDelays(first=FIRST_DELAY, longest=LONGEST_DELAY)
        async with asyncio.timeout(REACH_SECONDS):
            while True:
                try:
                    found = await self._attempt(method, query, body)
                    if found[0] == 200 or found[0] in _FINAL:
                        return found
                except (aiohttp.ClientError, OSError, CodecError):  # a TimeoutError, too
                    pass
                await asyncio.sleep(delays.next_delay())

    async def _attempt(self, method: str, query: dict[str, str], body: str) -> tuple[int, bytes]:
        if self._session is None:
            self._session = plain_session(
                connector=NameLookUps().connector(),
                timeout=aiohttp.ClientTimeout(total=ATTEMPT_SECONDS),
            )
        headers, tls = bearer(self._token()), self._tls()
        async with self._session.request(
            method, self._url, params=query, data=body or None, headers=headers, ssl=tls
        ) as answer:
            return answer.status, await _bounded(answer)


async def _bounded(answer: aiohttp.ClientResponse) -> bytes:
    """The body; aiohttp.ClientPayloadError if it is longer than a trajectory's turns can be."""
    body = bytearray()
    async for part in answer.content.iter_chunked(1 << 16):
        body += part
        if len(body) > LONGEST_TURNS:
            raise aiohttp.ClientPayloadError(f"more than {LONGEST_TURNS} bytes of turns")
    return bytes(body)


def _turns(body: bytes) -> tuple[TrajectoryTurn, ...]:
    lines = body.splitlines()
    return tuple(decode(TrajectoryTurn, parse(line), path="turn") for line in lines)


def _verdict(body: bytes) -> TurnVerdict:
    """BAD_TURN for what the coordinator could not read."""
    try:
        return TurnVerdict(json.loads(body).get("verdict"))
    except (ValueError, AttributeError):
        return TurnVerdict.BAD_TURN
