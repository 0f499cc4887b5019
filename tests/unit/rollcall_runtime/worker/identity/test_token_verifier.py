"""A token names its bearer, or proves nothing for a reason of a fixed set."""

import base64
import hmac
import json
import time
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from rollcall_runtime.worker.identity.token_verifier import (
    LONGEST_TOKEN,
    REMEMBERED_TOKENS,
    Identity,
    TokenRefusal,
    TokenRefusedError,
    TokenVerifier,
)
from rollcall_runtime.worker.identity.trust_file import TrustFile
from tests.token_issuer import OPERATOR, SigningKey, TokenIssuer, default_key, ec_key, rsa_key

POD: dict[str, Any] = {"job_uid": "job-1", "pod": "reverse-cpu-0", "pod_uid": "uid-0"}
ISSUER = TokenIssuer()
BEARER = Identity("default", "reverse-cpu-0", "uid-0", "system:serviceaccount:default:default")
OTHER = rsa_key("key-1")  # the same name, another key


class Clock:
    """Seconds that a test moves."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def verifier(path: Path) -> TokenVerifier:
    return verifier_of(path)


def verifier_of(path: Path, **more: Any) -> TokenVerifier:
    return TokenVerifier(
        TrustFile(path), audience="rollcall.dev/job-1", namespace="default", **more
    )


def refusal(verifier: TokenVerifier, token: str) -> TokenRefusal:
    with pytest.raises(TokenRefusedError) as refused:
        verifier.verify(token)
    return refused.value.reason


def test_a_pods_token_names_the_pod(verifier: TokenVerifier) -> None:
    assert verifier.verify(ISSUER.pod_token(**POD)) == BEARER


def test_a_token_signed_on_an_elliptic_curve_is_a_token_too(path: Path) -> None:
    issuer = TokenIssuer(key=ec_key("curve"))
    path.write_text(issuer.trust())
    assert verifier_of(path).verify(issuer.pod_token(**POD)) == BEARER


def test_the_operator_is_known_by_its_service_account_and_needs_no_pod(
    verifier: TokenVerifier,
) -> None:
    found = verifier.verify(ISSUER.operator_token(job_uid="job-1"))
    assert found.is_operator
    assert (found.service_account, found.pod) == (OPERATOR, "")


def unsigned(**changes: Any) -> str:
    """A token whose header says that it needs no signature."""
    _, body, _ = ISSUER.pod_token(**POD, **changes).split(".")
    return f"{part({'alg': 'none', 'kid': 'key-1'})}.{body}."


def signed_with_the_public_key() -> str:
    """HMAC with what everybody knows: accepted where the header chooses the algorithm."""
    public = default_key().private.public_key()
    key = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    _, body, _ = ISSUER.pod_token(**POD).split(".")
    signed = f"{part({'alg': 'HS256', 'kid': 'key-1'})}.{body}"
    return f"{signed}.{encoded(hmac.digest(key, signed.encode(), 'sha256'))}"


def part(value: Any) -> str:
    return encoded(json.dumps(value).encode())


def encoded(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()


def tokens() -> dict[str, tuple[str, TokenRefusal]]:
    def token(key: SigningKey | None = None, /, **changes: Any) -> str:
        issuer = TokenIssuer(key=key or default_key())
        return issuer.pod_token(**{**POD, **changes})

    def of(named: Any) -> str:
        return ISSUER.pod_token(**POD, **{"kubernetes.io": named})

    named = {"namespace": "default", "serviceaccount": {"name": "default", "uid": "u"}}
    return {
        "none": ("", TokenRefusal.NO_TOKEN),
        "a guess": ("guess", TokenRefusal.MALFORMED),
        "no text": ("\udcff.a.b", TokenRefusal.MALFORMED),
        "too long": (token(padding="x" * LONGEST_TOKEN), TokenRefusal.MALFORMED),
        "no signature": (unsigned(), TokenRefusal.MALFORMED),
        "signed by all": (signed_with_the_public_key(), TokenRefusal.MALFORMED),
        "another cluster": (token(rsa_key("key-9")), TokenRefusal.UNKNOWN_KEY),
        "a forged signature": (token(OTHER), TokenRefusal.BAD_SIGNATURE),
        "another issuer": (token(iss="https://else.where"), TokenRefusal.WRONG_ISSUER),
        "another job": (token(job_uid="job-2"), TokenRefusal.WRONG_AUDIENCE),
        "the reference's": (
            token(audience="rollcall.dev/job-1/reference"),
            TokenRefusal.WRONG_AUDIENCE,
        ),
        "the API server's": (token(audience=ISSUER.issuer), TokenRefusal.WRONG_AUDIENCE),
        "no audience": (token(aud=None), TokenRefusal.MALFORMED),
        "expired": (token(seconds=-60), TokenRefusal.EXPIRED),
        "without end": (token(exp=None), TokenRefusal.MALFORMED),
        "of tomorrow": (token(nbf=int(time.time()) + 86400), TokenRefusal.NOT_YET_VALID),
        "another namespace": (token(namespace="other"), TokenRefusal.WRONG_NAMESPACE),
        "of no pod": (of(named), TokenRefusal.NO_POD),
        "of a pod without a name": (
            of({**named, "pod": {"uid": "u"}}),
            TokenRefusal.NO_POD,
        ),
        "of a pod that is a list": (
            of({**named, "pod": ["reverse-cpu-0"]}),
            TokenRefusal.NO_POD,
        ),
        "of nothing": (of(None), TokenRefusal.WRONG_NAMESPACE),
    }


@pytest.mark.parametrize("name", tokens())
def test_what_proves_nothing_is_refused_with_the_reason(verifier: TokenVerifier, name: str) -> None:
    token, reason = tokens()[name]
    assert refusal(verifier, token) is reason


def test_clocks_of_nodes_may_differ_by_seconds(verifier: TokenVerifier) -> None:
    assert verifier.verify(ISSUER.pod_token(**POD, seconds=-3)) == BEARER


@pytest.mark.parametrize(
    ("times", "reason"),
    [
        ({"seconds": -3600}, TokenRefusal.EXPIRED),
        ({"nbf": int(time.time()) + 3600}, TokenRefusal.NOT_YET_VALID),
    ],
    ids=["an hour ahead", "an hour behind"],
)
def test_a_clock_that_is_wrong_by_an_hour_is_named(
    verifier: TokenVerifier, times: dict[str, Any], reason: TokenRefusal
) -> None:
    with pytest.raises(
        TokenRefusedError, match=r"; the clock here says 20\d\d-.* set it, if"
    ) as found:
        verifier.verify(ISSUER.pod_token(**POD, **times))
    assert found.value.reason is reason


def test_rotated_keys_are_followed(path: Path) -> None:
    clock = Clock()
    trust = TrustFile(path, clock=clock)
    verifier = TokenVerifier(trust, audience="rollcall.dev/job-1", namespace="default")
    rotated = TokenIssuer(key=rsa_key("key-2"))
    assert refusal(verifier, rotated.pod_token(**POD)) is TokenRefusal.UNKNOWN_KEY
    path.write_text(rotated.trust(default_key(), rotated.key))
    clock.now += 1.1
    assert verifier.verify(rotated.pod_token(**POD)) == BEARER
    assert verifier.verify(ISSUER.pod_token(**POD)) == BEARER, "the old key is there still"


def test_a_withdrawn_key_is_believed_no_longer_not_even_for_a_token_seen_before(
    path: Path,
) -> None:
    clock = Clock()
    trust = TrustFile(path, clock=clock)
    verifier = TokenVerifier(trust, audience="rollcall.dev/job-1", namespace="default")
    token = ISSUER.pod_token(**POD)
    assert verifier.verify(token) == BEARER
    path.write_text(TokenIssuer(key=rsa_key("key-2")).trust())
    clock.now += 1.1
    assert refusal(verifier, token) is TokenRefusal.UNKNOWN_KEY


def test_a_token_is_remembered_for_a_minute_at_most_and_never_beyond_its_end(path: Path) -> None:
    clock = Clock(time.time())
    verifier = verifier_of(path, clock=clock)
    long, short = ISSUER.pod_token(**POD), ISSUER.pod_token(**POD, seconds=2)
    verifier.verify(long), verifier.verify(short)
    checked = []
    claims = verifier._claims
    verifier._claims = lambda *given: checked.append(given) or claims(*given)  # type: ignore[method-assign,func-returns-value]
    clock.now += 5
    verifier.verify(long)
    assert checked == []
    verifier.verify(short)
    assert len(checked) == 1, "its end has passed, by this clock"
    clock.now += 60
    verifier.verify(long)
    assert len(checked) == 2


def test_what_is_remembered_is_bounded(verifier: TokenVerifier) -> None:
    for _ in range(REMEMBERED_TOKENS + 10):
        verifier.verify(ISSUER.pod_token(**POD))
    assert len(verifier._remembered) <= REMEMBERED_TOKENS
