"""Who may use which route: every pair of a route and a role, with tokens as clusters issue them."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from rollcall_protocol import pod_contract
from rollcall_protocol.prompts.sample_check import SampleBounds
from rollcall_protocol.wire.ids import Lineage, Version
from rollcall_runtime.coordinator.server import CoordinatorServer
from rollcall_runtime.coordinator.ticket_issuer import TicketIssuer
from rollcall_runtime.membership.part_sender import SenderRank
from rollcall_runtime.rollout.agent_server import AgentServer
from rollcall_runtime.rollout.generation_endpoint import GenerationEndpoint
from rollcall_runtime.rollout.served_versions import ServedVersions
from rollcall_runtime.sync.weights.tickets import TicketKeys, sign_ticket
from rollcall_runtime.train.gang_member import admit_ranks
from rollcall_runtime.train.reference_pods.metrics import ReferenceMetrics
from rollcall_runtime.train.reference_pods.server import ReferenceServer
from rollcall_runtime.worker.auth import Authenticator, RouteHandler
from rollcall_runtime.worker.environment import Pod, TrainerEnvironment
from rollcall_runtime.worker.identity.roles import RENDEZVOUS, ROLES_OF_ROUTE, CallerRole, RoleBook
from tests.unit.rollcall_runtime.credentials import ISSUER, bearer, trust, verifier
from tests.unit.rollcall_runtime.jobs import job_config
from tests.unit.rollcall_runtime.rollout.fake_engine import rollout_metrics
from tests.unit.rollcall_runtime.train.reference_pods.pods import BOUNDS, authenticator

OPERATOR, TRAINER_RANK, MEMBER, REGISTERED = (
    CallerRole.OPERATOR,
    CallerRole.TRAINER_RANK,
    CallerRole.MEMBER,
    CallerRole.REGISTERED,
)
ITSELF, TICKET_HOLDER, UNAUTHENTICATED = (
    CallerRole.ITSELF,
    CallerRole.TICKET_HOLDER,
    CallerRole.UNAUTHENTICATED,
)
FRONT = CallerRole.FRONT
ALLOWED = {
    ("coordinator", "PUT", pod_contract.ROSTER_ROUTE): {OPERATOR},
    ("coordinator", "GET", pod_contract.OPERATOR_STREAM_ROUTE): {OPERATOR},
    ("coordinator", "GET", pod_contract.MEMBER_STREAM_ROUTE): {TRAINER_RANK, MEMBER, REGISTERED},
    ("coordinator", "GET", pod_contract.FRONT_STREAM_ROUTE): {FRONT},
    ("coordinator", "GET", pod_contract.WEIGHTS_ROUTE): {TICKET_HOLDER},
    ("coordinator", "GET", pod_contract.GANG_ROUTE): {TRAINER_RANK},
    ("coordinator", "POST", pod_contract.COMPLETIONS_ROUTE): {MEMBER},
    ("coordinator", "POST", pod_contract.TRAJECTORIES_ROUTE): {FRONT},
    ("coordinator", "GET", pod_contract.TURNS_ROUTE): {FRONT},
    ("coordinator", "POST", pod_contract.TURNS_ROUTE): {FRONT},
    ("coordinator", "DELETE", pod_contract.TURNS_ROUTE): {FRONT},
    ("rollout", "POST", pod_contract.DRAIN_ROUTE): {OPERATOR, ITSELF},
    ("rollout", "POST", pod_contract.REGISTER_ROUTE): set(CallerRole),
    ("rollout", "GET", pod_contract.WEIGHTS_ROUTE): {TICKET_HOLDER},
    ("rollout", "POST", pod_contract.GENERATE_ROUTE): {TICKET_HOLDER},
    ("trainer rank", "GET", pod_contract.WEIGHTS_ROUTE): {TICKET_HOLDER},
    ("reference", "POST", pod_contract.LOGPROBS_ROUTE): {TRAINER_RANK},
}
ADDRESS, JOB = "127.0.0.1", job_config(trainer_replicas=2, front=True)
VERSION = str(Version(Lineage(1, 1), 1))
KEY = "ab" * 32
PODS = {
    TRAINER_RANK: ("reverse-trainer-1", "uid-trainer-1"),
    MEMBER: ("reverse-cpu-1", "uid-member"),
    REGISTERED: ("reverse-cpu-2", "uid-newcomer"),
    ITSELF: ("reverse-cpu-0", "uid-itself"),
    FRONT: ("reverse-front-0", "uid-front"),
}


class Reached(Exception):  # noqa: N818 - no error: the request has passed
    """A request got as far as its handler."""


async def reached(*_: Any) -> Any:
    raise Reached


def raise_reached(*_: Any, **__: Any) -> Any:
    raise Reached


def trainer() -> TrainerEnvironment:
    return TrainerEnvironment(
        job=JOB,
        pod=Pod("reverse-trainer-0", "uid-trainer-0", ADDRESS),
        coordinator=ADDRESS,
        token=lambda: "",
        trust=trust(),
        state_dir=cast("Any", None),
        rank=0,
    )


def coordinator() -> list[web.Application]:
    issuer = TicketIssuer(["127.0.0.1:7100"])
    issuer.own_keys.accept("coordinator", KEY)
    behind = SimpleNamespace(
        member=SimpleNamespace(pod_uid="uid-trainer-0"),
        config=JOB.coordinator,
        stream=SimpleNamespace(serve=reached),
        front_stream=SimpleNamespace(serve=reached),
        connections=SimpleNamespace(serve=reached),
        snapshots=SimpleNamespace(held=raise_reached),
        suspicious_pod=raise_reached,
        push_roster=raise_reached,
        is_member=lambda uid: uid == PODS[MEMBER][1],
        tickets=issuer,
    )
    server = CoordinatorServer(
        cast("Any", behind),
        address=ADDRESS,
        verifier=trainer().verifier(),
        metrics=cast("Any", SimpleNamespace(refused=lambda _: None)),
        gang=reached,
    )
    prompts = SimpleNamespace(
        complete=raise_reached,
        trajectories=SimpleNamespace(
            handle=reached, turns=SimpleNamespace(give=reached, take=reached, drop=reached)
        ),
        longest_message=2**16,
    )
    completions = server._completions(cast("Any", prompts))
    return [server._membership(), completions, server._weights()]


def endpoint(keys: TicketKeys) -> RouteHandler:
    return GenerationEndpoint(
        engine=cast("Any", None),
        served=ServedVersions(),
        bounds=SampleBounds(13, 32),
        tickets=keys,
        metrics=rollout_metrics(),
        draining=raise_reached,  # asked after the ticket
    ).handle


def applications() -> dict[str, list[web.Application]]:
    """The listeners' applications, with handlers that record that they were reached."""
    keys = TicketKeys()
    keys.accept("coordinator", KEY)
    book = RoleBook(JOB.job, JOB.trainer_replicas, own_pod_uid=PODS[ITSELF][1])
    agent = AgentServer(
        authenticator=Authenticator(verifier(JOB.uid), book, lambda _: None),
        tickets=keys,
        held=raise_reached,
        drain=raise_reached,
        refused=lambda _: None,
        reconnect=reached,
        generate=endpoint(keys),
    )
    rank = SenderRank(environment=replace(trainer(), rank=1), engines=())
    rank._tickets.accept("default", KEY)
    reference = ReferenceServer(
        authenticator=authenticator(JOB.uid, lambda _: None, replicas=JOB.trainer_replicas),
        bounds=BOUNDS,
        logprobs=raise_reached,
        thread=cast("Any", None),
        metrics=ReferenceMetrics(namespace="n", job="j"),
    )
    return {
        "coordinator": coordinator(),
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


def token_of(role: CallerRole, *, audience: str = "") -> str:
    """What a caller of this role shows."""
    if role is OPERATOR:
        return ISSUER.operator_token(job_uid=JOB.uid)
    if role not in PODS:
        return ""
    pod, uid = PODS[role]
    return ISSUER.pod_token(job_uid=JOB.uid, pod=pod, pod_uid=uid, audience=audience)


def headers_of(role: CallerRole, *, who: str, path: str) -> dict[str, str]:
    if role is TICKET_HOLDER:
        opens = pod_contract.GENERATE_ROUTE if path == pod_contract.GENERATE_ROUTE else VERSION
        return {pod_contract.TICKET_HEADER: sign_ticket(KEY, opens)}
    audience = pod_contract.reference_audience(JOB.uid) if who == "reference" else ""
    token = token_of(role, audience=audience)
    return bearer(token) if token else {}


def test_these_are_all_routes() -> None:
    found = {
        (who, method, path)
        for who, listeners in applications().items()
        for application in listeners
        for method, path in routes_of(application)
    }
    assert found == set(ALLOWED)
    assert set(ROLES_OF_ROUTE) == {path for _, _, path in ALLOWED} | {RENDEZVOUS}


@pytest.mark.parametrize("role", CallerRole)
@pytest.mark.parametrize("route", ALLOWED, ids=" ".join)
async def test_a_role_may_use_its_routes_and_no_others(
    route: tuple[str, str, str], role: CallerRole
) -> None:
    who, method, path = route
    found = await status_at(
        applications()[who], method, path, headers=headers_of(role, who=who, path=path)
    )
    if role in ALLOWED[route] or (path, role) == (pod_contract.MEMBER_STREAM_ROUTE, ITSELF):
        assert found not in {401, 403}
    else:
        assert found in {401, 403}


@pytest.mark.parametrize("role", CallerRole)
def test_the_ranks_rendezvous_is_for_ranks(role: CallerRole) -> None:
    refused: list[str] = []
    assert admit_ranks(trainer(), refused.append)(token_of(role)) is (role is TRAINER_RANK)
    assert len(refused) == (role is not TRAINER_RANK), "what is refused is counted"


@pytest.mark.parametrize("shown", ["to the coordinator", "to the reference"])
async def test_what_trainers_show_at_one_endpoint_is_of_no_use_at_the_other(shown: str) -> None:
    reference = pod_contract.reference_audience(JOB.uid)
    if shown == "to the coordinator":
        where = ("reference", "POST", pod_contract.LOGPROBS_ROUTE)
        token = token_of(TRAINER_RANK)
    else:
        where = ("coordinator", "GET", pod_contract.GANG_ROUTE)
        token = token_of(TRAINER_RANK, audience=reference)
    who, method, path = where
    assert await status_at(applications()[who], method, path, headers=bearer(token)) == 401


@pytest.mark.parametrize("route", ALLOWED, ids=" ".join)
@pytest.mark.parametrize("token", ["guess", "x" * 5000])
async def test_what_is_no_token_gets_nothing(route: tuple[str, str, str], token: str) -> None:
    who, method, path = route
    found = await status_at(applications()[who], method, path, headers=bearer(token))
    assert (found == 401) is (UNAUTHENTICATED not in ALLOWED[route])


async def status_at(
    listeners: list[web.Application], method: str, path: str, *, headers: dict[str, str]
) -> int:
    """The status of the answer; 200 when the handler was reached."""
    (application,) = (found for found in listeners if (method, path) in routes_of(found))
    request = make_mocked_request(method, f"{path}?version={VERSION}", headers=headers)
    match = await application.router.resolve(request)
    try:
        response = await match.handler(request)
    except Exception:  # noqa: BLE001 - whatever a handler says of an empty request
        return 200
    return response.status
