"""The API server and the controllers of `rollcall local`, where these tests have a real cluster.

It runs in a thread of its own, since each test has its own event loop.
"""

import asyncio
import base64
import contextlib
import tempfile
import threading
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from aiohttp import web

from hack.free_ports import free_ports
from rollcall_local.api_server.admission import admit
from rollcall_local.api_server.kinds import KINDS, NAMESPACES
from rollcall_local.api_server.server import ApiServer, Handler
from rollcall_local.api_server.service_tokens import ServiceTokens
from rollcall_local.api_server.store import Entry, Key, ObjectStore
from rollcall_local.controllers.manager import ControllerManager
from rollcall_local.server_certificate import server_tls
from rollcall_operator.kube.resources import PODS, SERVICE_ACCOUNTS
from tests.apiserver.cluster import Cluster
from tests.apiserver.cluster_user import ACCOUNT, SYSTEM, kubeconfig

if TYPE_CHECKING:
    from hack.cluster.control_plane import ControlPlane

_HOST = "127.0.0.1"
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


class AuditedServer(ApiServer):
    """Keeps what the operator writes, and takes a scheduler's bindings."""

    def __init__(
        self, store: ObjectStore, tokens: ServiceTokens, *, token: str, folder: Path
    ) -> None:
        super().__init__(store, tokens, token=token, read_log=lambda *_: b"")
        self.written: list[dict[str, Any]] = []
        self._tls, self.authority = server_tls(_HOST, folder / "server.pem")
        self.port, self.operator_port = free_ports(2)

    async def serve(self) -> None:
        """On a port for all, and one for the operator."""
        await self.start(host=_HOST)
        assert self._runner is not None
        for port in (self.port, self.operator_port):
            await web.TCPSite(self._runner, _HOST, port, ssl_context=self._tls).start()

    def _add_verbs(self, router: web.UrlDispatcher, place: str) -> None:
        super()._add_verbs(router, place)
        router.add_post(place + "/pods/{name}/binding", self._bind)

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        answer = await super()._guard(request, handler)
        if request.method in _VERBS and request.host.endswith(f":{self.operator_port}"):
            parts = request.path.partition("/namespaces/")[2].split("/")
            names = ("namespace", "resource", "name", "subresource")
            about = dict(zip(names, parts, strict=False))
            code = {"code": answer.status}
            verb = _VERBS[request.method]
            self.written.append({"verb": verb, "objectRef": about, "responseStatus": code})
        return answer

    async def _bind(self, request: web.Request) -> web.StreamResponse:
        info, body = request.match_info, await request.json()
        node = {"spec": {"nodeName": body["target"]["name"]}}
        self._store.merge(PODS, info["namespace"], info["name"], node)
        return web.json_response(body, status=201)


class LocalControl:
    """What of a ControlPlane the tests ask for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="local API server")
        self._store = ObjectStore(admit=admit, changed=self._changed)
        self._controllers = ControllerManager(self._store)
        tokens = ServiceTokens(folder / "key.pem")
        own = tokens.issue(
            namespace=SYSTEM, account=ACCOUNT, account_uid="u", spec={"expirationSeconds": 86_400}
        )
        self._token = own["token"]
        self._server = AuditedServer(self._store, tokens, token=self._token, folder=folder)

    def writes(self, *, user: str | None = None) -> list[dict[str, Any]]:
        """The operator's."""
        return list(self._server.written)

    def start(self) -> None:
        """Serve, in a thread."""
        self._thread.start()
        self._loop.call_soon_threadsafe(self._make_namespaces)
        self.start_apiserver()
        self._running = asyncio.run_coroutine_threadsafe(self._controllers.run(), self._loop)

    def start_apiserver(self) -> None:
        """On the same ports as before."""
        self._await(self._server.serve())

    def stop_apiserver(self) -> None:
        """All connections end; the objects stay."""
        self._await(self._server.close())

    def stop(self) -> None:
        """End the thread."""
        assert not self._running.done(), self._running.exception()
        self._running.cancel()
        self.stop_apiserver()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def kubeconfig(self, *, of_operator: bool) -> Path:
        """The operator's, or that of all others."""
        port = self._server.operator_port if of_operator else self._server.port
        path = self.folder / f"kubeconfig-{port}"
        authority = base64.b64encode(self._server.authority.encode()).decode()
        cluster = {"server": f"https://{_HOST}:{port}", "certificate-authority-data": authority}
        path.write_text(kubeconfig(self._token, cluster))
        return path

    def _await(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(20)

    def _make_namespaces(self) -> None:
        for name in (SYSTEM, "default"):
            self._store.create(NAMESPACES, {"metadata": {"name": name}})
        self._make_account(SYSTEM, ACCOUNT)

    def _make_account(self, namespace: str, name: str) -> None:
        if self._store.find(SERVICE_ACCOUNTS, namespace, name) is None:
            body = {"metadata": {"name": name, "namespace": namespace}}
            self._store.create(SERVICE_ACCOUNTS, body)

    def _changed(self, key: Key, entry: Entry | None) -> None:
        """Does what a cluster's controllers of accounts and namespaces do."""
        if key.plural == NAMESPACES.plural and entry is not None:
            self._loop.call_soon(self._make_account, key.name, "default")
        elif key.plural == NAMESPACES.plural:
            self._loop.call_soon(self._empty, key.name)
        self._controllers.notify(key)

    def _empty(self, namespace: str) -> None:
        for resource in (kind.resource for kind in KINDS.values()):
            for found in self._store.listed(resource, namespace):
                self._store.delete(resource, namespace, found["metadata"]["name"], grace=0)


@contextlib.contextmanager
def running_local_cluster() -> Iterator[Cluster]:
    """One that is there as long as the context."""
    with tempfile.TemporaryDirectory() as folder:
        control = LocalControl(Path(folder))
        control.start()
        try:
            yield Cluster(
                control=cast("ControlPlane", control),
                admin=control.kubeconfig(of_operator=False),
                operator=control.kubeconfig(of_operator=True),
            )
        finally:
            control.stop()
