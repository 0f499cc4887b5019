"""Checks service-account tokens offline, by the cluster's public keys.

https://kubernetes.io/docs/reference/access-authn-authz/service-accounts-admin/#bound-service-account-tokens
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import jwt

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rollcall_runtime.worker.identity.trust_file import Trust, TrustFile

ALGORITHMS = ("RS256", "ES256", "ES384", "ES512")
"""By which API servers sign."""
LONGEST_TOKEN = 4096
LEEWAY = 10.0
"""Seconds that clocks of nodes may differ by."""
REMEMBERED_SECONDS = 60.0
REMEMBERED_TOKENS = 1024


class TokenRefusal(StrEnum):
    """Why a token is refused, or its bearer; the label of rollcall_refused_total."""

    NO_TOKEN = "no_token"  # noqa: S105 - no secret
    MALFORMED = "malformed_token"
    UNKNOWN_KEY = "unknown_key"
    BAD_SIGNATURE = "bad_signature"
    WRONG_ISSUER = "wrong_issuer"
    WRONG_AUDIENCE = "wrong_audience"
    EXPIRED = "expired"
    NOT_YET_VALID = "not_yet_valid"
    WRONG_NAMESPACE = "wrong_namespace"
    NO_POD = "no_pod"
    NOT_ALLOWED = "not_allowed"
    IMPERSONATED = "impersonated"


class TokenRefusedError(Exception):
    """The token proves nothing; `reason` says why."""

    def __init__(self, reason: TokenRefusal, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Identity:
    """Whom a token names. The operator may run outside of a pod, so that its pod is empty."""

    namespace: str
    pod: str
    pod_uid: str
    service_account: str  # system:serviceaccount:<namespace>:<name>
    is_operator: bool = False


class TokenVerifier:
    """Checks tokens of one `audience`: the operator's, and those of pods in `namespace`.

    A token that was accepted is not checked again for REMEMBERED_SECONDS, as long as the keys stay
    the same. Belongs to one thread.
    """

    def __init__(
        self,
        trust: TrustFile,
        *,
        audience: str,
        namespace: str,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`clock` gives Unix seconds, for what is remembered; a token's times are the system's."""
        self._trust, self._audience, self._namespace = trust, audience, namespace
        self._clock = clock
        self._by: Trust | None = None
        self._remembered: dict[bytes, tuple[float, Identity]] = {}

    def verify(self, token: str) -> Identity:
        """Whom the token names; TokenRefusedError says why it proves nothing."""
        if not token:
            raise TokenRefusedError(TokenRefusal.NO_TOKEN, "no token")
        if len(token) > LONGEST_TOKEN or not token.isascii():
            raise TokenRefusedError(TokenRefusal.MALFORMED, "not a token of Kubernetes")
        trust, now = self._trust.current(), self._clock()
        if trust is not self._by or len(self._remembered) >= REMEMBERED_TOKENS:
            self._by = trust
            self._remembered.clear()
        digest = hashlib.sha256(token.encode()).digest()
        until, known = self._remembered.get(digest, (0.0, None))
        if known is not None and now < until:
            return known
        claims = self._claims(token, trust)
        identity = self._identity(claims, trust)
        self._remembered[digest] = min(now + REMEMBERED_SECONDS, float(claims["exp"])), identity
        return identity

    def _claims(self, token: str, trust: Trust) -> dict[str, Any]:
        try:
            header = jwt.get_unverified_header(token)
            if header.get("alg") not in ALGORITHMS:
                raise TokenRefusedError(TokenRefusal.MALFORMED, "signed by another algorithm")
            key = trust.keys.get(str(header.get("kid")))
            if key is None:
                raise TokenRefusedError(TokenRefusal.UNKNOWN_KEY, "signed by an unknown key")
            claims: dict[str, Any] = jwt.decode(
                token,
                key,
                algorithms=ALGORITHMS,
                audience=self._audience,
                issuer=trust.issuer,
                leeway=LEEWAY,
                options={"require": ["exp", "iss", "aud", "sub"]},
            )
        except jwt.PyJWTError as error:
            reason, problem = _reason(error), str(error)
            if reason in _BY_CLOCK:
                now = datetime.now(UTC).isoformat(timespec="seconds")
                problem = f"{problem}; the clock here says {now}: set it, if that is wrong"
            raise TokenRefusedError(reason, problem) from error
        return claims

    def _identity(self, claims: Mapping[str, Any], trust: Trust) -> Identity:
        named, subject = _mapping(claims.get("kubernetes.io")), str(claims["sub"])
        namespace, pod = _text(named.get("namespace")), _mapping(named.get("pod"))
        name, uid = _text(pod.get("name")), _text(pod.get("uid"))
        if subject == trust.operator:
            return Identity(namespace, name, uid, subject, is_operator=True)
        if namespace != self._namespace:
            problem = f"a token of namespace {namespace!r}, not of {self._namespace!r}"
            raise TokenRefusedError(TokenRefusal.WRONG_NAMESPACE, problem)
        if not (name and uid):
            raise TokenRefusedError(TokenRefusal.NO_POD, "a token that is bound to no pod")
        return Identity(namespace, name, uid, subject)


def _reason(error: jwt.PyJWTError) -> TokenRefusal:
    for kind, reason in _REASONS:
        if isinstance(error, kind):
            return reason
    return TokenRefusal.MALFORMED


_REASONS = (
    (jwt.InvalidSignatureError, TokenRefusal.BAD_SIGNATURE),
    (jwt.ExpiredSignatureError, TokenRefusal.EXPIRED),
    (jwt.ImmatureSignatureError, TokenRefusal.NOT_YET_VALID),
    (jwt.InvalidIssuerError, TokenRefusal.WRONG_ISSUER),
    (jwt.InvalidAudienceError, TokenRefusal.WRONG_AUDIENCE),
)


_BY_CLOCK = {TokenRefusal.EXPIRED, TokenRefusal.NOT_YET_VALID}


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
