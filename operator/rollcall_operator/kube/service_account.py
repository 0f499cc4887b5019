"""Which service account the operator is: by its own token, or by a setting."""

import base64
import json
from dataclasses import dataclass
from typing import Any

from rollcall_operator.kube.connection import ConfigurationError, Connection

_PREFIX = "system:serviceaccount:"


@dataclass(frozen=True, slots=True)
class ServiceAccount:
    """A service account, and the pod that its token is bound to; empty where it is to none."""

    namespace: str
    name: str
    pod: str = ""
    pod_uid: str = ""

    @property
    def subject(self) -> str:
        """As tokens name it."""
        return f"{_PREFIX}{self.namespace}:{self.name}"


async def own_service_account(connection: Connection, *, setting: str) -> ServiceAccount:
    """The one whose token the operator uses at the API server, else `setting` (namespace/name).

    A token that is bound to a pod ends with it, so the tokens that coordinators see are bound to
    the same one. ConfigurationError when neither names a service account.
    """
    header = (await connection.auth_headers()).get("Authorization", "")
    own = _of_token(header.removeprefix("Bearer "))
    namespace, slash, name = setting.partition("/")
    if setting and not (namespace and slash and name):
        raise ConfigurationError(f"--service-account: {setting!r} is not NAMESPACE/NAME")
    if own is not None and (not setting or (own.namespace, own.name) == (namespace, name)):
        return own
    if setting:
        return ServiceAccount(namespace, name)
    raise ConfigurationError(
        "the credentials for the API server are not those of a service account; name the one that "
        "the operator shows to coordinators with --service-account NAMESPACE/NAME"
    )


def _of_token(token: str) -> ServiceAccount | None:
    """Whom a token names; None for credentials of another kind."""
    claims = _claims(token)
    subject = claims.get("sub")
    if not isinstance(subject, str) or not subject.startswith(_PREFIX):
        return None
    namespace, _, name = subject.removeprefix(_PREFIX).partition(":")
    pod = (claims.get("kubernetes.io") or {}).get("pod") or {}
    return ServiceAccount(namespace, name, str(pod.get("name", "")), str(pod.get("uid", "")))


def _claims(token: str) -> dict[str, Any]:
    """Unchecked: it is the operator's own."""
    parts = token.split(".")
    if len(parts) != 3:
        return {}
    try:
        padded = parts[1] + "=" * (-len(parts[1]) % 4)
        claims = json.loads(base64.urlsafe_b64decode(padded))
    except ValueError:
        return {}
    return claims if isinstance(claims, dict) else {}
