"""Stands in for a dead coordinator, so that a test may read the weights that rollouts hold."""

import asyncio
import secrets

from aiohttp import web

from rollcall_protocol import pod_contract
from rollcall_protocol.wire.ids import Version
from rollcall_protocol.wire.messages import Hello, TicketKey, dumps, loads
from rollcall_runtime.sync.weights.tickets import sign_ticket

CONNECT_SECONDS = 20.0


class TicketGiver:
    """Takes the members' streams at the coordinator's `address`, and gives each a key."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._keys: dict[str, str] = {}
        self._connected = asyncio.Condition()

    async def __aenter__(self) -> "TicketGiver":
        app = web.Application()
        app.router.add_get(pod_contract.MEMBER_STREAM_ROUTE, self._serve)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        self._site = web.TCPSite(self._runner, self._address, pod_contract.MEMBERSHIP_PORT)
        await self._site.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._site.stop()
        await asyncio.sleep(0.1)  # a connection just accepted is not the runner's yet
        await self._runner.cleanup()

    async def ticket(self, pod_uid: str, version: Version) -> str:
        """What opens the weights of this pod, once it has connected."""
        async with asyncio.timeout(CONNECT_SECONDS), self._connected:
            await self._connected.wait_for(lambda: pod_uid in self._keys)
        return sign_ticket(self._keys[pod_uid], str(version))

    async def _serve(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        member, key = loads(await socket.receive_str(), Hello).member, secrets.token_hex(32)
        await socket.send_str(dumps(TicketKey(key)))
        async with self._connected:
            self._keys[member.pod_uid] = key
            self._connected.notify_all()
        async for _ in socket:
            pass
        return socket
