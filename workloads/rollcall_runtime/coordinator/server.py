"""The coordinator's three listeners: membership, completions, and weights for newcomers."""

import asyncio

from aiohttp import web

from rollcall_protocol import pod_contract
from rollcall_protocol.wire.messages import ReconnectRequest
from rollcall_runtime.coordinator.absent_members import ReconnectRequester
from rollcall_runtime.coordinator.completion_endpoint import CompletionEndpoint
from rollcall_runtime.coordinator.coordinator import Coordinator
from rollcall_runtime.coordinator.metrics import CoordinatorMetrics
from rollcall_runtime.coordinator.prompt_dispatcher import PromptDispatcher
from rollcall_runtime.coordinator.roster_push import handle_roster_push
from rollcall_runtime.sync.weights.catch_up import weights_handler
from rollcall_runtime.worker.auth import Authenticator, RouteHandler
from rollcall_runtime.worker.bounded_listener import BACKLOG, BoundedRunner
from rollcall_runtime.worker.identity.roles import RoleBook
from rollcall_runtime.worker.identity.tls import TlsContext
from rollcall_runtime.worker.identity.token_verifier import TokenVerifier

STOP_SECONDS = 2.0


class CoordinatorServer:
    """Listens on the pod's address only, and sends reconnect requests to missing members.

    `verifier` says who calls. `gang` handles the streams of the trainer's other ranks; `prompts`
    takes completions. With a `certificate` tokens go through TLS; weights never do, since that
    costs more than their transport.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        *,
        address: str,
        verifier: TokenVerifier,
        metrics: CoordinatorMetrics,
        certificate: TlsContext | None = None,
        gang: RouteHandler | None = None,
        prompts: PromptDispatcher | None = None,
    ) -> None:
        self._prompts = prompts
        self._coordinator, self._address, self._gang = coordinator, address, gang
        self._metrics, self._certificate = metrics, certificate
        config = coordinator.config
        book = RoleBook(
            config.job,
            config.trainer_replicas,
            is_member=coordinator.is_member,
            has_front=config.front,
        )
        self._authenticator = Authenticator(verifier, book, metrics.refused)
        self._runners: list[web.AppRunner] = []
        self._reconnects = ReconnectRequester(
            members=coordinator,
            request=ReconnectRequest(address, coordinator.member.pod_uid),
            bound=coordinator.config.membership.suspect_after,
        )
        self._requesting: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Open the listeners. Raises OSError when a port is taken."""
        certificate = self._certificate
        await self._listen(self._membership(), pod_contract.MEMBERSHIP_PORT, certificate)
        if self._prompts is not None:
            completions = self._completions(self._prompts)
            await self._listen(completions, pod_contract.COMPLETIONS_PORT, certificate)
        await self._listen(self._weights(), pod_contract.weights_port(0), None)
        self._requesting = asyncio.create_task(self._reconnects.run())

    async def stop(self) -> None:
        """Stop sending requests and close the listeners, each within STOP_SECONDS."""
        if self._requesting is not None:
            self._requesting.cancel()
            await asyncio.gather(self._requesting, return_exceptions=True)
        await asyncio.gather(*(runner.cleanup() for runner in self._runners))

    def _membership(self) -> web.Application:
        coordinator, refused = self._coordinator, self._metrics.refused

        async def roster(request: web.Request) -> web.StreamResponse:
            return await handle_roster_push(request, coordinator.push_roster, refused)

        guard = self._authenticator.guard
        streams: list[tuple[str, RouteHandler]] = [
            (pod_contract.OPERATOR_STREAM_ROUTE, coordinator.stream.serve),
            (pod_contract.MEMBER_STREAM_ROUTE, coordinator.connections.serve),
            (pod_contract.FRONT_STREAM_ROUTE, coordinator.front_stream.serve),
        ]
        if self._gang is not None:
            streams.append((pod_contract.GANG_ROUTE, self._gang))
        app = web.Application()
        app.router.add_put(pod_contract.ROSTER_ROUTE, guard(pod_contract.ROSTER_ROUTE, roster))
        for route, handler in streams:
            app.router.add_get(route, guard(route, handler))
        return app

    def _weights(self) -> web.Application:
        coordinator = self._coordinator
        handler = weights_handler(coordinator.snapshots.held)
        guarded = coordinator.tickets.own_keys.guard(handler, self._metrics.refused)
        app = web.Application()
        app.router.add_get(pod_contract.WEIGHTS_ROUTE, guarded)
        return app

    def _completions(self, prompts: PromptDispatcher) -> web.Application:
        endpoint = CompletionEndpoint(prompts.complete, self._metrics.refused)
        app = web.Application(client_max_size=prompts.longest_message)
        route = pod_contract.COMPLETIONS_ROUTE
        app.router.add_post(route, self._authenticator.guard(route, endpoint.handle))
        route, take = pod_contract.TRAJECTORIES_ROUTE, prompts.trajectories.handle
        app.router.add_post(route, self._authenticator.guard(route, take))
        return app

    async def _listen(self, app: web.Application, port: int, tls: TlsContext | None) -> None:
        runner = BoundedRunner(
            app, refused=self._metrics.refused, shutdown_timeout=STOP_SECONDS, tls=tls
        )
        await runner.setup()
        self._runners.append(runner)
        await web.TCPSite(runner, self._address, port, backlog=BACKLOG).start()
