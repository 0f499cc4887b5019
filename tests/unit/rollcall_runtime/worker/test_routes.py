"""Every route of every listener wants its token: the member's, or the operator's for rosters."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from rollcall_protocol import pod_contract
from rollcall_runtime.coordinator.server import CoordinatorServer
from rollcall_runtime.rollout.agent_server import AgentServer
from rollcall_runtime.train.part_sender import SenderRank
from rollcall_runtime.train.reference_pods.metrics import ReferenceMetrics
from rollcall_runtime.train.reference_pods.server import ReferenceServer
from rollcall_runtime.worker.auth import Tokens
from tests.unit.rollcall_runtime.train.reference_pods.pods import BOUNDS

MEMBER, OPERATOR = "member-token", "operator-token"
ADDRESS = "127.0.0.1"
ROUTES = {
    ("coordinator", "PUT", pod_contract.ROSTER_ROUTE): OPERATOR,
    ("coordinator", "GET", pod_contract.OPERATOR_STREAM_ROUTE): OPERATOR,
    ("coordinator", "GET", pod_contract.MEMBER_STREAM_ROUTE): MEMBER,
    ("coordinator", "GET", pod_contract.WEIGHTS_ROUTE): MEMBER,
    ("coordinator", "GET", pod_contract.GANG_ROUTE): MEMBER,
    ("coordinator", "POST", pod_contract.COMPLETIONS_ROUTE): MEMBER,
    ("rollout", "POST", pod_contract.DRAIN_ROUTE): MEMBER,
    ("rollout", "POST", pod_contract.REGISTER_ROUTE): MEMBER,
    ("rollout", "GET", pod_contract.WEIGHTS_ROUTE): MEMBER,
    ("trainer rank", "GET", pod_contract.WEIGHTS_ROUTE): MEMBER,
    ("reference", "POST", pod_contract.LOGPROBS_ROUTE): MEMBER,
}


class Reached(Exception):  # noqa: N818 - no error: the request has passed
    """A request got as far as its handler."""


async def reached(*_: Any) -> Any:
    raise Reached


def raise_reached(*_: Any, **__: Any) -> Any:
    raise Reached


def applications() -> dict[str, list[web.Application]]:
    """The listeners' applications, with handlers that record that they were reached."""
    coordinator = SimpleNamespace(
        member=SimpleNamespace(pod_uid="uid"),
        config=SimpleNamespace(membership=SimpleNamespace(suspect_after=1.0)),
        stream=SimpleNamespace(serve=reached),
        connections=SimpleNamespace(serve=reached),
        prompts=SimpleNamespace(complete=raise_reached),
        snapshots=SimpleNamespace(held=raise_reached),
        push_roster=raise_reached,
    )
    server = CoordinatorServer(
        cast("Any", coordinator),
        address=ADDRESS,
        tokens=Tokens(member=MEMBER, operator=OPERATOR),
        metrics=cast("Any", SimpleNamespace(refused=lambda _: None)),
        gang=reached,
    )
    agent = AgentServer(
        token=MEMBER,
        held=raise_reached,
        drain=raise_reached,
        refused=lambda _: None,
        reconnect=raise_reached,
    )
    job = SimpleNamespace(weight_sync=SimpleNamespace(stage_timeout=1.0, delta=None))
    environment = SimpleNamespace(job=job, rank=1, local_rank=0, member_token=MEMBER)
    rank = SenderRank(environment=cast("Any", environment), engines=())
    reference = ReferenceServer(
        token=MEMBER,
        bounds=BOUNDS,
        logprobs=raise_reached,
        thread=cast("Any", None),
        metrics=ReferenceMetrics(namespace="n", job="j"),
    )
    return {
        "coordinator": [server._membership(), server._completions()],
        "rollout": [agent._runner.app],
        "trainer rank": [rank._runner.app],
        "reference": [reference._runner.app],
    }


def routes_of(application: web.Application) -> set[tuple[str, str]]:
    found = set()
    for route in application.router.routes():
        if route.method != "HEAD" and route.resource is not None:
            found.add((route.method, route.resource.canonical))
    return found


def test_these_are_all_routes() -> None:
    found = {
        (who, method, path)
        for who, listeners in applications().items()
        for application in listeners
        for method, path in routes_of(application)
    }
    assert found == set(ROUTES)


@pytest.mark.parametrize("route", ROUTES, ids=" ".join)
@pytest.mark.parametrize("given", ["none", "wrong", "the other one"])
async def test_a_request_without_the_token_is_refused(
    route: tuple[str, str, str], given: str
) -> None:
    who, method, path = route
    other = MEMBER if ROUTES[route] == OPERATOR else OPERATOR
    token = {"none": None, "wrong": "guess", "the other one": other}[given]
    assert await status_of(who, method, path, token=token) == 401


@pytest.mark.parametrize("route", ROUTES, ids=" ".join)
async def test_a_request_with_the_token_is_handled(route: tuple[str, str, str]) -> None:
    assert await status_of(*route, token=ROUTES[route]) != 401


async def status_of(who: str, method: str, path: str, *, token: str | None) -> int:
    """The status of the answer; 200 when the handler was reached."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    (application,) = (found for found in applications()[who] if (method, path) in routes_of(found))
    request = make_mocked_request(method, path, headers=headers)
    match = await application.router.resolve(request)
    try:
        response = await match.handler(request)
    except Exception:  # noqa: BLE001 - whatever a handler says of an empty request
        return 200
    return response.status
