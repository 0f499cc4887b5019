"""A run that has ended: an API server with what it has left behind."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rollcall_local.api_server.admission import admit
from rollcall_local.api_server.folder import ObjectFolder
from rollcall_local.api_server.service_tokens import ServiceTokens
from rollcall_local.api_server.store import ObjectStore
from rollcall_local.controllers.manager import ControllerManager
from rollcall_local.served_store import served
from rollcall_local.state_folder import StateFolder


@asynccontextmanager
async def opened_again(folder: StateFolder) -> AsyncIterator[None]:
    """Serve it as long as the context, at the folder's kubeconfig; StateFolderError."""
    folder.hold()
    try:
        kept = ObjectFolder(folder.objects)
        store = ObjectStore(admit=admit, changed=kept.changed, entries=kept.load())
        async with served(folder, store, ServiceTokens(folder.key)):
            yield
            ControllerManager(store).collect_garbage()
    finally:
        folder.release()
