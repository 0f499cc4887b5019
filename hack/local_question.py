"""Questions to the API server of a local run, by tools that have no event loop."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from rollcall_cli.cluster import open_cluster
from rollcall_local.state_folder import StateFolder
from rollcall_operator.kube.client import KubeClient

T = TypeVar("T")


def ask(folder: StateFolder, question: Callable[[KubeClient], Awaitable[T]]) -> T:
    """The answer; raises as `open_cluster` and the question do."""

    async def asked() -> T:
        async with open_cluster(kubeconfig=str(folder.kubeconfig)) as (client, _):
            return await question(client)

    return asyncio.run(asked())
