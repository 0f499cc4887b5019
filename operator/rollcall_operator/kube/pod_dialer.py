"""How to reach a pod's port: by its address, or outside the cluster by the API server's proxy."""

import ssl
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import aiohttp

from rollcall_operator.kube.connection import Connection
from rollcall_operator.kube.http_client import open_session
from rollcall_operator.kube.resources import PODS
from rollcall_protocol.pod_contract import OPERATOR_TOKEN_HEADER
from rollcall_protocol.wire.addresses import host_port


@dataclass(frozen=True, slots=True)
class PodAddress:
    """A pod as something to talk to.

    With `authorities` (certificates, PEM) it must prove to them that it is `host`; without, it does
    not speak TLS.
    """

    namespace: str
    name: str
    uid: str
    ip: str
    host: str = ""
    authorities: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where requests to one port of a pod go; `url` plus a route, with these headers.

    `tls` are the options of a request to it.
    """

    url: str
    headers: dict[str, str] = field(repr=False)
    tls: dict[str, Any] = field(default_factory=dict, repr=False)


class PodDialer:
    """Owns the HTTP session of all coordinator links, apart from the API client's pool."""

    def __init__(self, connection: Connection | None, *, direct: bool) -> None:
        """`connection` may be None when `direct`."""
        if connection is None and not direct:
            raise ValueError("the pod proxy needs a connection to the API server")
        self._connection = connection
        self._direct = direct
        self._session: aiohttp.ClientSession | None = None

    @property
    def session(self) -> aiohttp.ClientSession:
        """The session; made at first use, inside a running loop."""
        if self._session is None:
            # A stream for each job stays open, so there is no limit on connections.
            to_server = None if self._direct else self._connection
            context = to_server.ssl_context if to_server is not None else True
            self._session = open_session(
                connector=aiohttp.TCPConnector(limit=0, ssl=context),
                proxy=to_server.proxy if to_server is not None else None,
            )
        return self._session

    @property
    def direct(self) -> bool:
        """Whether pods are reached at their own addresses."""
        return self._direct

    async def endpoint(self, pod: PodAddress, *, port: int, token: str) -> Endpoint:
        """Base URL and headers for `port` of `pod`, with the operator's token for the job."""
        if self._direct or self._connection is None:
            bearer, address = {"Authorization": f"Bearer {token}"}, host_port(pod.ip, port)
            if not pod.authorities:
                return Endpoint(url=f"http://{address}", headers=bearer)
            tls = {"ssl": _believing(pod.authorities), "server_hostname": pod.host}
            return Endpoint(url=f"https://{address}", headers=bearer, tls=tls)
        # The proxy takes Authorization for itself and does not pass it on.
        headers = {OPERATOR_TOKEN_HEADER: token, **await self._connection.auth_headers()}
        # Nor does it check the pod's certificate.
        name = f"https:{pod.name}" if pod.authorities else pod.name
        path = PODS.path(namespace=pod.namespace) + f"/{name}"
        return Endpoint(url=f"{self._connection.server}{path}:{port}/proxy", headers=headers)

    async def close(self) -> None:
        """Close the session and every stream on it."""
        if self._session is not None:
            await self._session.close()


@lru_cache(maxsize=64)
def _believing(authorities: str) -> ssl.SSLContext:
    """ssl.SSLError if they cannot be read."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(cadata=authorities)
    return context
