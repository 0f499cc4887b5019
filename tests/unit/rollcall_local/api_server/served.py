"""An API server on a port of this machine, and the operator's client for it."""

import base64
import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from rollcall_local.api_server.admission import admit
from rollcall_local.api_server.kinds import NAMESPACES
from rollcall_local.api_server.pod_routes import ReadLog
from rollcall_local.api_server.server import ApiServer
from rollcall_local.api_server.service_tokens import ServiceTokens
from rollcall_local.api_server.store import ObjectStore
from rollcall_local.server_certificate import server_tls
from rollcall_operator.kube.client import KubeClient
from rollcall_operator.kube.connection import connect
from rollcall_operator.kube.transport import JSON, Transport
from tests.unit.kubeconfig import write_kubeconfig

HOST, TOKEN = "127.0.0.1", "secret"
Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Served:
    """`http` sends what the client would not."""

    store: ObjectStore
    server: ApiServer
    client: KubeClient
    http: aiohttp.ClientSession

    async def ask(
        self, method: str, path: str, body: Any = None, **options: Any
    ) -> tuple[int, Object]:
        """Status and JSON of an answer; `body` as JSON, or bytes as they are."""
        content: Object = {"json": body}
        if isinstance(body, bytes):
            content = {"data": io.BytesIO(body)}
            options.setdefault("headers", {"Content-Type": JSON})
        async with self.http.request(method, path, **content, **options) as answer:
            return answer.status, await answer.json()


@asynccontextmanager
async def served(
    folder: Path,
    *,
    store: ObjectStore | None = None,
    read_log: ReadLog = lambda *_: b"",
    with_tls: bool = False,
) -> AsyncIterator[Served]:
    """A server with the namespace `ns`, and files in `folder`."""
    store = store or ObjectStore(admit=admit)
    store.create(NAMESPACES, {"metadata": {"name": "ns"}})
    server = ApiServer(store, ServiceTokens(folder / "key.pem"), token=TOKEN, read_log=read_log)
    tls, believed = None, dict[str, str]()
    if with_tls:
        tls, authority = server_tls(HOST, folder / "server.pem")
        believed["certificate-authority-data"] = base64.b64encode(authority.encode()).decode()
    await server.start(host=HOST, tls=tls)
    connection = await connect(kubeconfig=write_kubeconfig(folder, server.url, **believed))
    headers = {"Authorization": f"Bearer {TOKEN}"}
    try:
        async with aiohttp.ClientSession(server.url, headers=headers, trust_env=False) as http:
            yield Served(store, server, KubeClient(Transport(connection)), http)
    finally:
        await connection.close()
        await server.close()
