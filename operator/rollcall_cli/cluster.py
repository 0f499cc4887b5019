"""The cluster that the options of a command name, as kubectl would find it."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from rollcall_operator.kube.client import KubeClient
from rollcall_operator.kube.connection import connect
from rollcall_operator.kube.transport import Transport

if TYPE_CHECKING:
    import argparse
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager


def chosen_cluster(
    options: argparse.Namespace,
) -> AbstractAsyncContextManager[tuple[KubeClient, str]]:
    """`open_cluster` as the options say."""
    return open_cluster(
        kubeconfig=options.kubeconfig, context=options.context, namespace=options.namespace
    )


@asynccontextmanager
async def open_cluster(
    *, kubeconfig: str | None = None, context: str | None = None, namespace: str | None = None
) -> AsyncIterator[tuple[KubeClient, str]]:
    """A client, and the namespace: that of the context if it is None.

    Raises ConfigurationError: there is no usable kubeconfig.
    """
    connection = await connect(kubeconfig=kubeconfig, context=context)
    try:
        yield KubeClient(Transport(connection)), namespace or connection.namespace
    finally:
        await connection.close()
