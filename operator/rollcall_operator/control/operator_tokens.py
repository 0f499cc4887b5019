"""How the operator proves itself to coordinators: its service account's token for each job."""

import datetime as dt
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rollcall_operator.control.trust_keys import TrustKeys
from rollcall_operator.kube.client import KubeClient
from rollcall_operator.kube.service_account import ServiceAccount
from rollcall_protocol.pod_contract import audience

TOKEN_SECONDS = 3600
USED_SHARE = 0.8
"""Of a token's life, after which it is replaced; as kubelets do."""


@dataclass(frozen=True, slots=True)
class _IssuedToken:
    """A token, and when to replace it (Unix seconds)."""

    text: str
    renew_at: float


class OperatorTokens:
    """Tokens by job, from the TokenRequest API. Bound to the operator's pod where it has one."""

    def __init__(
        self,
        client: KubeClient,
        account: ServiceAccount,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`clock` gives Unix seconds."""
        self._client, self._account, self._clock = client, account, clock
        self._issued: dict[str, _IssuedToken] = {}

    async def token(self, job_uid: str) -> str:
        """A token for the job's coordinator; raises the client's errors."""
        now = self._clock()
        held = self._issued.get(job_uid)
        if held is None or now >= held.renew_at:
            held = self._issued[job_uid] = await self._request(job_uid, now)
        return held.text

    def forget(self, job_uid: str) -> None:
        """The job is gone, or its coordinator refused the token."""
        self._issued.pop(job_uid, None)

    async def _request(self, job_uid: str, now: float) -> _IssuedToken:
        account = self._account
        spec: dict[str, Any] = {
            "audiences": [audience(job_uid)],
            "expirationSeconds": TOKEN_SECONDS,
        }
        if account.pod and account.pod_uid:
            spec["boundObjectRef"] = {
                "apiVersion": "v1",
                "kind": "Pod",
                "name": account.pod,
                "uid": account.pod_uid,
            }
        status = await self._client.create_token(
            namespace=account.namespace, account=account.name, spec=spec
        )
        expires = dt.datetime.fromisoformat(status["expirationTimestamp"]).timestamp()
        return _IssuedToken(status["token"], now + USED_SHARE * max(0.0, expires - now))


class JobCredentials:
    """What one job's link shows to the coordinator."""

    def __init__(self, tokens: OperatorTokens, keys: TrustKeys, *, job_uid: str) -> None:
        self._tokens, self._keys, self._job_uid = tokens, keys, job_uid

    async def token(self) -> str:
        """A token that is valid now; raises the client's errors."""
        return await self._tokens.token(self._job_uid)

    def refused(self) -> None:
        """The coordinator refused it: get another, and see whether the cluster's keys changed."""
        self._tokens.forget(self._job_uid)
        self._keys.look_now()
