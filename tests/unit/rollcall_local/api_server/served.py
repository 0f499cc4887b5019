"""An API server on a port of this machine, and the operator's client for it."""

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
from rollcall_operator.kube.client import KubeClient
from rollcall_operator.kube.connection import connect
from rollcall_operator.kube.transport import Transport
from tests.unit.kubeconfig import write_kubeconfig

TOKEN = "secret"
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
        is_text = isinstance(body, bytes)
        content: Object = {"data": io.BytesIO(body)} if is_text else {"json": body}
        async with self.http.request(method, path, **content, **options) as answer:
            return answer.status, await answer.json()


@asynccontextmanager
async def served(
    folder: Path, *, store: ObjectStore | None = None, read_log: ReadLog = lambda *_: b""
) -> AsyncIterator[Served]:
    """A server with the namespace `ns`, and files in `folder`."""
    store = store or ObjectStore(admit=admit)
    store.create(NAMESPACES, {"metadata": {"name": "ns"}})
    server = ApiServer(store, ServiceTokens(folder / "key.pem"), token=TOKEN, read_log=read_log)
    await server.start(host="127.0.0.1")
    connection = await connect(kubeconfig=write_kubeconfig(folder, server.url))
    headers = {"Authorization": f"Bearer {TOKEN}"}
    try:
        async with aiohttp.ClientSession(server.url, headers=headers, trust_env=False) as http:
            yield Served(store, server, KubeClient(Transport(connection)), http)
    finally:
        await connection.close()
        await server.close()
