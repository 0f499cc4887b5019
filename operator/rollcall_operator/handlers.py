"""The only file that knows kopf: watch events in, keys of jobs out.

kopf lists and watches; each handler only names the job that an event belongs to. kopf writes
nothing to any object: no finalizers, annotations, peerings or events.
"""

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any

import aiohttp
import kopf

from rollcall_operator.api import labels
from rollcall_operator.control.backoff import BackoffPolicy
from rollcall_operator.kube.connection import Connection
from rollcall_operator.kube.resources import (
    DEPLOYMENTS,
    NETWORK_POLICIES,
    NODES,
    PODS,
    RL_JOBS,
    ROLLOUT_POOLS,
    STATEFUL_SETS,
    Resource,
)

log = logging.getLogger(__name__)

Enqueue = Callable[[str, str], None]
"""Takes namespace and job name."""

NodeSeen = Callable[[Any, bool], None]
"""Takes a node and whether it is gone."""

LABELLED = (PODS, DEPLOYMENTS, STATEFUL_SETS, NETWORK_POLICIES)
WATCHED = (RL_JOBS, ROLLOUT_POOLS, *LABELLED)


class EndlessBackoffs(Iterable[float]):
    """Seconds between tries of a LIST or WATCH, without end: kopf would exit after the last."""

    def __iter__(self) -> Iterator[float]:
        """A fresh series; kopf takes one for each request."""
        backoff = BackoffPolicy(first=0.7, longest=15.0)
        for failures in itertools.count(1):
            yield backoff.delay(failures)


def job_of(resource: Resource, body: Any) -> tuple[str, str] | None:
    """Namespace and name of the job that an object belongs to; None when it has no job."""
    meta = body.get("metadata") or {}
    if resource == RL_JOBS:
        job = meta.get("name")
    elif resource == ROLLOUT_POOLS:
        job = ((body.get("spec") or {}).get("jobRef") or {}).get("name")
    else:
        job = (meta.get("labels") or {}).get(labels.JOB)
    return (meta["namespace"], job) if job else None


def register(
    registry: kopf.OperatorRegistry,
    *,
    enqueue: Enqueue,
    seen: Callable[[str], None],
    node_seen: NodeSeen | None = None,
) -> None:
    """Register an event handler for each watched kind; for nodes only with `node_seen`."""
    for resource in WATCHED:
        handler = _handler(resource, enqueue=enqueue, seen=seen)
        on_event = kopf.on.event(*_selector(resource), registry=registry, id="enqueue")
        on_event(handler)
    if node_seen is not None:
        on_event = kopf.on.event(*_selector(NODES), registry=registry, id="node")
        on_event(_node_handler(node_seen, seen=seen))


def _node_handler(
    node_seen: NodeSeen, *, seen: Callable[[str], None]
) -> Callable[..., Awaitable[None]]:
    async def handle(*, body: kopf.Body, type: str | None, **_: Any) -> None:  # noqa: A002 - kopf's
        seen(NODES.plural)
        node_seen(body, type == "DELETED")

    return handle


def _handler(
    resource: Resource, *, enqueue: Enqueue, seen: Callable[[str], None]
) -> Callable[..., Awaitable[None]]:
    async def handle(*, body: kopf.Body, **_: Any) -> None:
        seen(resource.plural)
        key = job_of(resource, body)
        if key is not None:
            enqueue(*key)

    return handle


def _selector(resource: Resource) -> tuple[str, str, str]:
    group, _, version = resource.api_version.rpartition("/")
    return group, version, resource.plural


def make_settings() -> kopf.OperatorSettings:
    """Kopf without its writes, and with streams that survive an outage of the API server."""
    settings = kopf.OperatorSettings()
    settings.networking.error_backoffs = EndlessBackoffs()
    settings.networking.request_timeout = 60
    settings.networking.connect_timeout = 10
    settings.peering.standalone = True
    settings.scanning.disabled = True
    settings.posting.enabled = False
    settings.posting.level = logging.WARNING
    settings.watching.server_timeout = 300
    settings.watching.client_timeout = 330
    settings.watching.inactivity_timeout = 70
    settings.watching.chunk_size = 500
    settings.process.ultimate_exiting_timeout = None
    settings.queueing.idle_timeout = 1.0
    for resource in LABELLED:
        settings.watching.label_selectors[_selector(resource)] = labels.JOB
    return settings


def _log_in(connection: Connection) -> Callable[..., Awaitable[kopf.AiohttpSession]]:
    async def authorize(
        request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        request.headers.update(await connection.auth_headers())  # a rotated token is picked up
        return await send(request)

    logins = itertools.count()

    async def log_in(**_: Any) -> kopf.AiohttpSession:
        if next(logins):  # not the first: the API server answered 401
            await connection.refresh()
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=connection.ssl_context),
            middlewares=(authorize,),
        )
        return kopf.AiohttpSession(server=connection.server, aiohttp_session=session)

    return log_in


async def watch(
    *,
    connection: Connection,
    namespaces: tuple[str, ...],
    enqueue: Enqueue,
    seen: Callable[[str], None],
    node_seen: NodeSeen | None,
    started: Callable[[], None],
    stop: asyncio.Event,
) -> None:
    """Watch until `stop` is set; `started` is called once kopf has put up its signal handlers.

    Raises what kopf cannot survive: a resource definition that was deleted, credentials that
    are refused. Cancels, when it ends, every task that was started after it.
    """
    registry = kopf.OperatorRegistry()
    register(registry, enqueue=enqueue, seen=seen, node_seen=node_seen)
    kopf.on.login(registry=registry)(_log_in(connection))

    async def on_startup(**_: Any) -> None:
        # kopf puts up its signal handlers a moment after it has started this one.
        asyncio.get_running_loop().call_later(0.05, started)

    kopf.on.startup(registry=registry)(on_startup)
    await kopf.operator(
        registry=registry,
        settings=make_settings(),
        namespaces=namespaces,
        clusterwide=not namespaces,
        stop_flag=stop,
    )
