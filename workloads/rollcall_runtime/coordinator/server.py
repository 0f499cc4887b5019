"""The coordinator's three listeners: membership, completions, and weights for newcomers."""

import asyncio
import socket
from dataclasses import dataclass
from typing import Self

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


@dataclass(frozen=True, slots=True)
class CoordinatorListeners:
    """Sockets that listen outside of pods, where a machine's processes share its address."""

    membership: socket.socket
    weights: socket.socket

    @classmethod
    def open(cls, address: str, port: int) -> Self:
        """Membership at `port`, 0 for a free one; OSError if it is taken."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        membership, weights = (
            socket.create_server((address, each), family=family) for each in (port, 0)
        )
        return cls(membership, weights)

    @property
    def port(self) -> int:
        """That of membership."""
        return port_of(self.membership)


def port_of(listener: socket.socket) -> int:
    """Where it listens."""
    port: int = listener.getsockname()[1]
    return port


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
        listeners: CoordinatorListeners | None = None,
    ) -> None:
        """`listeners`: None for those at the ports that pods have."""
        self._listeners = listeners
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
        certificate, own = self._certificate, self._listeners
        membership = pod_contract.MEMBERSHIP_PORT if own is None else own.membership
        await self._listen(self._membership(), membership, certificate)
        if self._prompts is not None:
            completions = self._completions(self._prompts)
            await self._listen(completions, pod_contract.COMPLETIONS_PORT, certificate)
        weights = pod_contract.weights_port(0) if own is None else own.weights
        await self._listen(self._weights(), weights, None)
        if own is None:  # elsewhere a member that has no stream has no port that is known
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
        suspicious = self._coordinator.suspicious_pod
        endpoint = CompletionEndpoint(prompts.complete, self._metrics.refused, suspicious)
        app = web.Application(client_max_size=prompts.longest_message)
        route = pod_contract.COMPLETIONS_ROUTE
        app.router.add_post(route, self._authenticator.guard(route, endpoint.handle))
        route, take = pod_contract.TRAJECTORIES_ROUTE, prompts.trajectories.handle
        app.router.add_post(route, self._authenticator.guard(route, take))
        route, turns = pod_contract.TURNS_ROUTE, prompts.trajectories.turns
        app.router.add_get(route, self._authenticator.guard(route, turns.give))
        app.router.add_post(route, self._authenticator.guard(route, turns.take))
        app.router.add_delete(route, self._authenticator.guard(route, turns.drop))
        return app

    async def _listen(
        self, app: web.Application, place: int | socket.socket, tls: TlsContext | None
    ) -> None:
        runner = BoundedRunner(
            app, refused=self._metrics.refused, shutdown_timeout=STOP_SECONDS, tls=tls
        )
        await runner.setup()
        self._runners.append(runner)
        if isinstance(place, socket.socket):
            await web.SockSite(runner, place, backlog=BACKLOG).start()
        else:
            await web.TCPSite(runner, self._address, place, backlog=BACKLOG).start()
