"""Callers with a token of this job at the routes of other roles, and in other callers' names."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hack.attacks.attack import attack, expect
from hack.attacks.clients import request, until_closed
from hack.attacks.rendezvous_client import refused_at_rendezvous
from hack.attacks.routes import REFUSED, ROUTES, refused_at
from rollcall_protocol import pod_contract
from rollcall_protocol.wire.ids import Lineage, MemberId, Version
from rollcall_protocol.wire.messages import Completion, Sample, dumps
from rollcall_runtime.worker.identity.roles import CallerRole
from tests.process.pods import ISSUER

if TYPE_CHECKING:
    from hack.attacks.target import AttackedJob, Attacker

CLOSE_SECONDS = 10.0
LABELS = 50


async def refused_where_not_allowed(
    job: AttackedJob, token: str, role: CallerRole, *, but: tuple[str, ...] = ()
) -> None:
    """Use a token at all routes that its role may not use, but for some paths."""
    for route in ROUTES:
        if not route.allows(role) and route.path not in but:
            await refused_at(job, route, token=token)


@attack("registered", "not_allowed")
async def routes_of_others_as_a_newcomer(job: AttackedJob) -> None:
    """A pod with a token that is on no roster, at all routes but its stream: 401 or 403."""
    newcomer = job.registered()
    await refused_where_not_allowed(job, newcomer.token, CallerRole.REGISTERED)
    await refused_at_rendezvous(job.ranks_rendezvous, newcomer.token)


@attack("member", "not_allowed", quick=True)
async def routes_of_others_as_a_rollout(job: AttackedJob) -> None:
    """A member at the routes of operator and ranks, and at another rollout's drain: 401 or 403."""
    member = job.rollout(1)
    await refused_where_not_allowed(job, member.token, CallerRole.MEMBER)
    await refused_at_rendezvous(job.ranks_rendezvous, member.token)


@attack("trainer rank", "not_allowed")
async def routes_of_others_as_a_rank(job: AttackedJob) -> None:
    """The trainer's second rank at the routes of operator and rollouts: 401 or 403."""
    rank = job.rank()
    await refused_where_not_allowed(job, rank.token, CallerRole.TRAINER_RANK)


@attack("operator", "not_allowed")
async def routes_of_others_as_the_operator(job: AttackedJob) -> None:
    """The operator's token at the routes of pods: 401 or 403."""
    token = ISSUER.operator_token(job_uid=job.uid)
    await refused_where_not_allowed(job, token, CallerRole.OPERATOR)
    await refused_at_rendezvous(job.ranks_rendezvous, token)


@attack("registered", "not_allowed")
async def token_in_the_operators_header(job: AttackedJob) -> None:
    """A pod's token in the header that stands for the operator: 403, it stays a pod."""
    headers = {pod_contract.OPERATOR_TOKEN_HEADER: job.registered().token}
    for route in ROUTES:
        if not route.allows(CallerRole.REGISTERED):
            await refused_at(job, route, token="", headers=headers)


@attack("member", "impersonated", quick=True)
async def completion_in_anothers_name(job: AttackedJob) -> None:
    """A rollout sends completions of another rollout's leases, whose ids count up: 403, counted."""
    attacker, other = job.rollout(0), job.rollout(1)
    for number in range(200):
        status = await post_completion(job, attacker, in_the_name_of=other, lease=f"1.1.{number}")
        expect(status == 403, f"a completion in another's name was answered {status}")


@attack("member", "impersonated")
async def stream_in_anothers_name(job: AttackedJob) -> None:
    """A rollout opens a stream as another rollout, which would lose its own: closed, counted."""
    attacker, other = job.rollout(0), job.rollout(1)
    for pretended in (other, replace(other, uid=attacker.uid), replace(other, pod=attacker.pod)):
        shown = replace(pretended, token=attacker.token)
        async with job.member_stream(shown, boot="another") as socket:
            expect(await until_closed(socket, seconds=CLOSE_SECONDS), "the stream stays open")


@attack("registered", "impersonated")
async def seat_of_a_trainer_rank(job: AttackedJob) -> None:
    """Pods that are no rank say they send weights as one: closed, counted."""
    for attacker in (job.registered(), job.rollout(0)):
        for sender in (0, 1, -1, 2**40):
            async with job.member_stream(attacker, boot="another", sender=sender) as socket:
                expect(await until_closed(socket, seconds=CLOSE_SECONDS), "the stream stays open")


@attack("trainer rank", "gang_rank", "impersonated")
async def gang_place_of_another_rank(job: AttackedJob) -> None:
    """A rank asks for the places of others, of none and for its own twice: refused, counted."""
    rank = job.rank()
    for text in ("0", "1", "7", "-1", "9" * 400, "", "x", "1&rank=2"):
        path = f"{pod_contract.GANG_ROUTE}?rank={text}"
        status = await request(job.membership, "GET", path, token=rank.token)
        expect(status in {403, 404, 409, 400, 0}, f"rank {text[:20]} was answered {status}")


@attack("registered", "not_allowed")
async def pod_with_a_trainers_name_of_another_job(job: AttackedJob) -> None:
    """Names that resemble a trainer's pod give no rank's rights: 401 or 403."""
    names = ("reverse-trainer-2", "reverse-trainer-01", "reverse-trainer-0x", "Reverse-Trainer-1")
    for name in names:
        attacker = job.registered(name)
        await refused_at(job, ROUTES[4], token=attacker.token)
        await refused_at_rendezvous(job.ranks_rendezvous, attacker.token)


@attack("unauthenticated")
async def unknown_methods_and_paths(job: AttackedJob) -> None:
    """Other methods, and paths beside the routes, at each endpoint: a status from 400 to 499."""
    paths = ("/", "/v1", "//v1/roster", "/v1/roster/", "/v1/../v1/roster", "/%2e%2e/etc/passwd")
    for endpoint in job.http_endpoints:
        for method in ("GET", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT"):
            for path in paths:
                status = await request(endpoint, method, path)
                expect(status == 0 or 400 <= status < 500, f"{method} {path}: {status}")


@attack("unauthenticated", seconds=120.0)
async def labels_without_end(job: AttackedJob) -> None:
    """Paths, methods, user agents, tokens and names of pods that never come again: the workers'
    metrics get no series for each.
    """
    before = {pod.name: len(await job.metrics(pod)) for pod in job.workers}
    for number in range(LABELS):
        name = f"x{number}-{job.random.randrange(10**9)}"
        headers = {"User-Agent": name, "X-Forwarded-For": name}
        for endpoint in job.http_endpoints:
            await request(endpoint, f"X{number}", f"/v1/{name}", token=name, headers=headers)
        async with job.member_stream(replace(job.registered(), pod=name), boot=name) as socket:
            expect(await until_closed(socket, seconds=CLOSE_SECONDS), "the stream stays open")
    for pod in job.workers:
        more = len(await job.metrics(pod)) - before[pod.name]
        expect(more < LABELS, f"{pod.name} has {more} more series than before")


@attack("member", "no_ticket")
async def weights_by_guessed_tickets(job: AttackedJob) -> None:
    """Weights with tickets that are guesses, long, of other bytes, or of another version: 401."""
    number = job.job.operator.last.progress.weight_version
    for ticket in ("", "ab" * 32, "x" * 3000, "caf\xe9", "0" * 64):
        for version in (f"{number}@1.1", "", "x", "9" * 1500 + "@1.1", "0@0.0"):
            for endpoint in (job.weights, job.agent):
                path = f"{pod_contract.WEIGHTS_ROUTE}?version={version}"
                headers = {pod_contract.TICKET_HEADER: ticket}
                status = await request(endpoint, "GET", path, headers=headers)
                expect(status in REFUSED, f"a guessed ticket was answered {status}")


async def post_completion(
    job: AttackedJob, attacker: Attacker, *, in_the_name_of: Attacker, lease: str
) -> int:
    """The status of a completion with an attacker's token and another's name."""
    sample = Sample((3, 2), (-1.0, -1.0), (0, 0), 1.0)
    member = MemberId(in_the_name_of.uid, "boot")
    text = dumps(Completion(job.uid, member, lease, Version(Lineage(1, 1), 0), (sample,)))
    route, token = pod_contract.COMPLETIONS_ROUTE, attacker.token
    return await request(job.completions, "POST", route, token=token, body=text.encode())
