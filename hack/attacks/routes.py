"""Every route of every worker, and who may use it, as the table of roles says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hack.attacks.attack import NotRefusedError
from hack.attacks.clients import CLOSED, request
from rollcall_protocol import pod_contract
from rollcall_runtime.worker.identity.roles import ROLES_OF_ROUTE, CallerRole

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hack.attacks.clients import Endpoint
    from hack.attacks.target import AttackedJob

REFUSED = frozenset({401, 403, CLOSED})


@dataclass(frozen=True, slots=True)
class Route:
    """A route behind one of the endpoints of AttackedJob, by the property's name."""

    endpoint: str
    method: str
    path: str

    def endpoint_of(self, job: AttackedJob) -> Endpoint:
        """The listener of this job."""
        found: Endpoint = getattr(job, self.endpoint)
        return found

    def allows(self, role: CallerRole) -> bool:
        """Whether callers of this role may use it."""
        return role in ROLES_OF_ROUTE[self.path.partition("?")[0]]


ROUTES = (
    Route("membership", "PUT", pod_contract.ROSTER_ROUTE),
    Route("membership", "GET", pod_contract.OPERATOR_STREAM_ROUTE),
    Route("membership", "GET", pod_contract.MEMBER_STREAM_ROUTE),
    Route("weights", "GET", pod_contract.WEIGHTS_ROUTE),
    Route("membership", "GET", pod_contract.GANG_ROUTE + "?rank=1"),
    Route("completions", "POST", pod_contract.COMPLETIONS_ROUTE),
    Route("agent", "POST", pod_contract.DRAIN_ROUTE),
    Route("agent", "GET", pod_contract.WEIGHTS_ROUTE),
    Route("reference", "POST", pod_contract.LOGPROBS_ROUTE),
    Route("membership", "GET", pod_contract.FRONT_STREAM_ROUTE),
    Route("completions", "POST", pod_contract.TRAJECTORIES_ROUTE),
    Route("agent", "POST", pod_contract.GENERATE_ROUTE),
    *(
        Route("completions", method, pod_contract.TURNS_ROUTE)
        for method in ("GET", "POST", "DELETE")
    ),
)
"""All but that for reconnect requests, which everybody may send."""


async def refused_at(
    job: AttackedJob, route: Route, *, token: str, headers: Mapping[str, str] | None = None
) -> None:
    """Send one request; NotRefusedError if the worker lets it in or fails of it."""
    endpoint = route.endpoint_of(job)
    body = b"{}" if route.method != "GET" else None
    status = await request(
        endpoint, route.method, route.path, token=token, headers=headers, body=body
    )
    if status not in REFUSED:
        raise NotRefusedError(f"{route.method} {endpoint.url(route.path)} answered {status}")
