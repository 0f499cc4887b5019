"""Tokens that prove nothing, at every route of every worker and at the ranks' rendezvous."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cryptography.hazmat.primitives import serialization

from hack.attacks.attack import attack
from hack.attacks.rendezvous_client import refused_at_rendezvous
from hack.attacks.routes import ROUTES, refused_at
from rollcall_protocol import pod_contract
from tests.process.pods import ISSUER
from tests.token_issuer import TokenIssuer, ec_key, rsa_key

if TYPE_CHECKING:
    from hack.attacks.target import AttackedJob

LONG_TOKEN = 64 << 10


async def refused_everywhere(job: AttackedJob, token: str, *, reference_token: str = "") -> None:
    """Show a token at every route that asks for one, and at the ranks' rendezvous."""
    for route in ROUTES:
        shown = reference_token if route.endpoint == "reference" and reference_token else token
        await refused_at(job, route, token=shown)
    await refused_at_rendezvous(job.ranks_rendezvous, token)


def tokens(job: AttackedJob, issuer: TokenIssuer = ISSUER, **changes: Any) -> tuple[str, str]:
    """Tokens of the first rollout for the coordinator and the reference, with claims changed."""
    pod = job.job.rollouts[0]
    named: dict[str, Any] = {"job_uid": job.uid, "pod": pod.name, "pod_uid": pod.uid}
    reference = {"audience": pod_contract.reference_audience(job.uid)}
    return issuer.pod_token(**named | changes), issuer.pod_token(**named | reference | changes)


async def show(job: AttackedJob, issuer: TokenIssuer = ISSUER, **changes: Any) -> None:
    """Show tokens of the first rollout that differ from its own in one thing."""
    own, reference = tokens(job, issuer, **changes)
    await refused_everywhere(job, own, reference_token=reference)


@attack("unauthenticated", "no_token", quick=True)
async def no_token(job: AttackedJob) -> None:
    """Every route without a token: 401, counted."""
    await refused_everywhere(job, "")


@attack("unauthenticated", "malformed_token")
async def guessed_token(job: AttackedJob) -> None:
    """A token that is a guess: 401, counted."""
    await refused_everywhere(job, "guess")


@attack("unauthenticated", "long_header", "malformed_token")
async def long_token(job: AttackedJob) -> None:
    """A token of 64 KiB: the connection is closed before it is read whole, and counted."""
    await refused_everywhere(job, "x" * LONG_TOKEN)


@attack("unauthenticated", "malformed_token", quick=True)
async def token_of_other_bytes(job: AttackedJob) -> None:
    """A token that is not ASCII, as Latin-1 and as UTF-8: 401, counted, no error."""
    for token in ("caf\xe9", "\xff\xfe", "t\u00f6ken"):
        await refused_everywhere(job, token)


@attack("unauthenticated", "malformed_token")
async def unsigned_token(job: AttackedJob) -> None:
    """The claims of a rollout under the algorithm `none`: 401, counted."""
    header, claims, _ = tokens(job)[0].split(".")
    named = json.loads(_decoded(header))
    for algorithm in ("none", "None", ""):
        changed = _encoded(json.dumps({**named, "alg": algorithm}).encode())
        await refused_everywhere(job, f"{changed}.{claims}.")


@attack("unauthenticated", "malformed_token", quick=True)
async def token_signed_with_the_public_key(job: AttackedJob) -> None:
    """The claims of a rollout, signed by HS256 with the public key as secret: 401, counted."""
    header, claims, _ = tokens(job)[0].split(".")
    public = ISSUER.key.private.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    named = json.loads(_decoded(header))
    body = f"{_encoded(json.dumps({**named, 'alg': 'HS256'}).encode())}.{claims}"
    signature = hmac.new(public, body.encode(), hashlib.sha256).digest()
    await refused_everywhere(job, f"{body}.{_encoded(signature)}")


@attack("unauthenticated", "unknown_key")
async def token_of_an_unknown_key(job: AttackedJob) -> None:
    """A rollout's claims under a key that the cluster does not have: 401, counted."""
    await show(job, replace(ISSUER, key=rsa_key("another")))


@attack("unauthenticated", "bad_signature")
async def token_with_a_forged_signature(job: AttackedJob) -> None:
    """A rollout's claims, signed by another key under the cluster's key's name: 401, counted."""
    await show(job, replace(ISSUER, key=rsa_key(ISSUER.key.kid)))


@attack("unauthenticated", "bad_signature", "malformed_token")
async def token_of_another_kind_of_key(job: AttackedJob) -> None:
    """ES256 by a key that bears the name of the cluster's RSA key: 401, counted."""
    await show(job, replace(ISSUER, key=ec_key(ISSUER.key.kid)))


@attack("unauthenticated", "wrong_issuer")
async def token_of_another_issuer(job: AttackedJob) -> None:
    """A token that names another API server: 401, counted."""
    await show(job, replace(ISSUER, issuer="https://another.example"))


@attack("unauthenticated", "wrong_audience", quick=True)
async def token_of_another_job(job: AttackedJob) -> None:
    """The token of a pod of another job, of the same name: 401, counted."""
    pod = job.job.rollouts[0]
    reference = pod_contract.reference_audience("another-uid")
    await refused_everywhere(
        job,
        ISSUER.pod_token(job_uid="another-uid", pod=pod.name, pod_uid=pod.uid),
        reference_token=ISSUER.pod_token(
            job_uid=job.uid, pod=pod.name, pod_uid=pod.uid, audience=reference
        ),
    )


@attack("unauthenticated", "wrong_audience")
async def token_for_the_api_server(job: AttackedJob) -> None:
    """A token that a pod has for the API server: 401, counted."""
    await show(job, audience="https://kubernetes.default.svc")


@attack("trainer rank", "wrong_audience")
async def ranks_tokens_at_each_others_endpoint(job: AttackedJob) -> None:
    """A rank's token for the reference at the coordinator, and the other way: 401, counted."""
    pod = job.job.trainers[1]
    reference = ISSUER.pod_token(
        job_uid=job.uid,
        pod=pod.name,
        pod_uid=pod.uid,
        audience=pod_contract.reference_audience(job.uid),
    )
    await refused_everywhere(job, reference, reference_token=pod.token(job.uid))


@attack("unauthenticated", "expired")
async def expired_token(job: AttackedJob) -> None:
    """A token that expired an hour ago, and one that expired 11 s ago: 401, counted."""
    for seconds in (-3600, -11):
        await show(job, seconds=seconds)


@attack("unauthenticated", "not_yet_valid")
async def token_of_tomorrow(job: AttackedJob) -> None:
    """A token of a clock that is ahead, by a day and by 15 s: 401, counted."""
    for ahead in (86400, 15):
        now = int(time.time()) + ahead
        await show(job, nbf=now, iat=now, exp=now + 3600)


@attack("unauthenticated", "malformed_token", "expired", "not_yet_valid")
async def token_of_absurd_times(job: AttackedJob) -> None:
    """Times that are no numbers, negative, or of 400 digits: 401, counted."""
    absurd: tuple[Any, ...] = ("soon", -(10**9), 1e308, [], {}, True)
    for value in absurd:
        await show(job, nbf=value if value is not True else "x", iat=value, exp=value)
    header, claims, signature = tokens(job)[0].split(".")
    text = _decoded(claims).replace(b'"exp":', b'"exp":' + b"9" * 400)
    await refused_everywhere(job, f"{header}.{_encoded(text)}.{signature}")


@attack("unauthenticated", "wrong_namespace")
async def token_of_another_namespace(job: AttackedJob) -> None:
    """A token for this job of a pod in another namespace: 401, counted."""
    await show(job, namespace="another")


@attack("unauthenticated", "no_pod")
async def token_of_no_pod(job: AttackedJob) -> None:
    """A token of a service account that is bound to no pod: 401, counted."""
    named = {"namespace": "default", "serviceaccount": {"name": "default", "uid": "u"}}
    await show_names(job, named)


@attack("unauthenticated", "malformed_token")
async def token_that_is_no_object(job: AttackedJob) -> None:
    """Headers and claims that are no JSON objects, or nested a thousand deep: 401, counted."""
    deep = b"[" * 1000 + b"]" * 1000
    for part in (b"[]", b"null", b"7", b'"x"', deep, b"\xff\xfe", b""):
        coded = _encoded(part)
        for token in (f"{coded}.{coded}.{coded}", f"{coded}..", f"..{coded}", "." * 500):
            await refused_at(job, ROUTES[0], token=token)
            await refused_at(job, ROUTES[6], token=token)
        await refused_at_rendezvous(job.ranks_rendezvous, f"{coded}.{coded}.{coded}")


@attack("unauthenticated", "no_pod", "malformed_token", "wrong_namespace")
async def signed_claims_that_are_no_names(job: AttackedJob) -> None:
    """Claims of the cluster's own key in which pod and namespace are lists and numbers: 401."""
    claims: tuple[Any, ...] = ([], 7, None, {"namespace": "default", "pod": []}, {"namespace": [1]})
    for claim in claims:
        await show_names(job, claim)


async def show_names(job: AttackedJob, named: Any) -> None:
    """Show a token whose claim about namespace and pod is `named`."""
    claims: dict[str, Any] = {"kubernetes.io": named}
    await show(job, ISSUER, **claims)


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
