"""The rollout's own port: weights for new members, responses, drain and reconnect requests."""

import asyncio
from collections.abc import Awaitable, Callable

from aiohttp import web

from rollcall_protocol import pod_contract
from rollcall_protocol.wire.ids import Version
from rollcall_protocol.wire.json_codec import CodecError
from rollcall_protocol.wire.messages import ReconnectRequest, loads
from rollcall_runtime.sync.weights.catch_up import weights_handler
from rollcall_runtime.sync.weights.snapshots import WeightSnapshot
from rollcall_runtime.sync.weights.tickets import TicketKeys
from rollcall_runtime.worker.auth import Authenticator, RouteHandler
from rollcall_runtime.worker.bounded_listener import BACKLOG, BoundedRunner

STOP_SECONDS = 2.0
LONGEST_BODY = 4096
BODY_SECONDS = 2.0
AT_ONCE = 64  # reconnect requests; the coordinator sends one


class AgentServer:
    """Listens on this pod's addresses only. Its endpoints are for tickets, and for `authenticator`.

    `reconnect` handles the request of a coordinator that has no stream from this member. Everybody
    may send that, so that the coordinator shows no token to a rollout. `generate` checks tickets.
    """

    def __init__(
        self,
        *,
        authenticator: Authenticator,
        tickets: TicketKeys,
        held: Callable[[Version], WeightSnapshot | None],
        drain: Callable[[str], None],
        refused: Callable[[str], None],
        reconnect: Callable[[ReconnectRequest], Awaitable[bool]],
        generate: RouteHandler,
        shard: str = "",
    ) -> None:
        async def begin_drain(request: web.Request) -> web.StreamResponse:
            drain(request.query.get("reason", "asked to drain"))
            return web.json_response({}, status=202)

        async def handle_reconnect(request: web.Request) -> web.StreamResponse:
            if self._asked >= AT_ONCE:
                refused("too_many_reconnects")
                raise web.HTTPServiceUnavailable
            self._asked += 1
            try:
                async with asyncio.timeout(BODY_SECONDS):
                    message = loads(await request.read(), ReconnectRequest)
            except CodecError as error:
                refused("malformed")
                return web.json_response({"error": str(error)}, status=400)
            except TimeoutError:
                refused("slow_body")
                raise web.HTTPRequestTimeout from None
            except web.HTTPRequestEntityTooLarge:
                refused("long_body")
                raise
            finally:
                self._asked -= 1
            return web.json_response({"registering": await reconnect(message)})

        self._asked = 0

        application = web.Application(client_max_size=LONGEST_BODY)
        application.router.add_post(
            pod_contract.DRAIN_ROUTE, authenticator.guard(pod_contract.DRAIN_ROUTE, begin_drain)
        )
        application.router.add_post(pod_contract.REGISTER_ROUTE, handle_reconnect)
        application.router.add_post(pod_contract.GENERATE_ROUTE, generate)
        weights = tickets.guard(weights_handler(held, shard=shard), refused)
        application.router.add_get(pod_contract.WEIGHTS_ROUTE, weights)
        self._runner = BoundedRunner(application, refused=refused, shutdown_timeout=STOP_SECONDS)

    async def start(self, *addresses: str, port: int = pod_contract.AGENT_PORT) -> int:
        """Listen on `addresses`, at a free port if it is 0; returns the port. OSError if it is
        taken.
        """
        await self._runner.setup()
        for address in addresses:
            await web.TCPSite(self._runner, address, port, backlog=BACKLOG).start()
            port = int(self._runner.addresses[0][1])
        return port

    async def stop(self) -> None:
        """Stop listening, and end downloads within STOP_SECONDS."""
        await self._runner.cleanup()
