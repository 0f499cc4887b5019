"""The API server of a run: its objects at an address that the run's kubeconfig leads to."""

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rollcall_local.api_server.server import ApiServer
from rollcall_local.api_server.service_tokens import ServiceTokens
from rollcall_local.api_server.store import ObjectStore
from rollcall_local.kubelet.logs import log_reader
from rollcall_local.server_certificate import server_tls
from rollcall_local.state_folder import StateFolder

HOST = "127.0.0.1"


@asynccontextmanager
async def served(
    folder: StateFolder, store: ObjectStore, tokens: ServiceTokens
) -> AsyncIterator[None]:
    """Serve `store` as long as the context; the kubeconfig of the folder is there meanwhile."""
    token = secrets.token_urlsafe(32)
    server = ApiServer(store, tokens, token=token, read_log=log_reader(folder.path))
    tls, authority = server_tls(HOST, folder.certificate)
    await server.start(host=HOST, tls=tls)
    try:
        folder.write_kubeconfig(server=server.url, token=token, authority=authority)
        yield
    finally:
        folder.kubeconfig.unlink(missing_ok=True)
        await server.close()
