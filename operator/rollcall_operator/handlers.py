"""The only file that knows kopf: events of RLJobs and RolloutPools in, keys of jobs out.

kopf lists and watches; each handler only names the job that an event belongs to and the object's
resourceVersion. The job is planned from `control.job_store`. kopf writes nothing to any object: no
finalizers, annotations, peerings or events.
"""

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any

import aiohttp
import kopf
import orjson

from rollcall_operator.control.backoff import WATCHING
from rollcall_operator.control.job_store import job_of
from rollcall_operator.kube.connection import Connection
from rollcall_operator.kube.http_client import open_session
from rollcall_operator.kube.resources import (
    RL_JOBS,
    ROLLOUT_POOLS,
    Resource,
)
from rollcall_operator.plan.model import JobKey

log = logging.getLogger(__name__)

Reported = Callable[[JobKey, str, str, str], None]
"""Takes namespace and name of the job; the plural of the object's kind, its name, its
resourceVersion.
"""

WATCHED = (RL_JOBS, ROLLOUT_POOLS)

_LISTS = {f"{resource.kind}List" for resource in WATCHED}
_READ_OF_METADATA = ("namespace", "name", "uid", "resourceVersion")


class EndlessBackoffs(Iterable[float]):
    """Seconds between tries of a LIST or WATCH, without end: kopf would exit after the last."""

    def __iter__(self) -> Iterator[float]:
        """A fresh series; kopf takes one for each request."""
        for failures in itertools.count(1):
            yield WATCHING.delay(failures)


def register(registry: kopf.OperatorRegistry, *, reported: Reported) -> None:
    """Register an event handler for each watched kind."""
    for resource in WATCHED:
        handler = _handler(resource, reported=reported)
        on_event = kopf.on.event(*_selector(resource), registry=registry, id="reported")
        on_event(handler)


def _handler(resource: Resource, *, reported: Reported) -> Callable[..., Awaitable[None]]:
    async def handle(*, body: kopf.Body, **_: Any) -> None:
        key = job_of(resource, body)
        if key is not None:
            metadata = body["metadata"]
            reported(key, resource.plural, metadata["name"], metadata["resourceVersion"])

    return handle


def _selector(resource: Resource) -> tuple[str, str, str]:
    group, _, version = resource.api_version.rpartition("/")
    return group, version, resource.plural


class NoProgress(kopf.ProgressStorage):
    """Keeps nothing: there are only handlers of events, which have no progress."""

    def fetch(self, **_: Any) -> None:
        pass

    def store(self, **_: Any) -> None:
        pass

    def purge(self, **_: Any) -> None:
        pass

    def touch(self, **_: Any) -> None:
        pass

    def clear(self, *, essence: kopf.BodyEssence) -> kopf.BodyEssence:
        """There is nothing of it in an object."""
        return essence


class NoDiffBase(kopf.DiffBaseStorage):
    """Keeps nothing: kopf would copy each object, for a difference that no handler asks for."""

    def build(self, **_: Any) -> kopf.BodyEssence:
        """All objects are alike."""
        return kopf.BodyEssence({})

    def fetch(self, **_: Any) -> None:
        pass

    def store(self, **_: Any) -> None:
        pass


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
    settings.watching.chunk_size = 100
    settings.process.ultimate_exiting_timeout = None
    settings.persistence.progress_storage = NoProgress()
    settings.persistence.diffbase_storage = NoDiffBase()
    settings.queueing.idle_timeout = 0.1
    return settings


class OutlinesResponse(aiohttp.ClientResponse):
    """Has kopf's lists hold of each object only what a handler reads: kopf holds thousands of them
    at once when it starts.
    """

    async def json(self, **options: Any) -> Any:
        """The decoded JSON; raises as that of ClientResponse does."""
        found = await super().json(**{"loads": orjson.loads, **options})
        if isinstance(found, dict) and found.get("kind") in _LISTS:
            found["items"] = [_outline(item) for item in found["items"]]
        return found


def _outline(item: dict[str, Any]) -> dict[str, Any]:
    return {
        "metadata": {name: item["metadata"][name] for name in _READ_OF_METADATA},
        "spec": {"jobRef": (item.get("spec") or {}).get("jobRef")},
    }


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
        session = open_session(
            connector=aiohttp.TCPConnector(limit=0, ssl=connection.ssl_context),
            middlewares=(authorize,),
            response_class=OutlinesResponse,
            proxy=connection.proxy,
        )
        return kopf.AiohttpSession(server=connection.server, aiohttp_session=session)

    return log_in


async def watch(
    *,
    connection: Connection,
    namespaces: tuple[str, ...],
    reported: Reported,
    started: Callable[[], None],
    stop: asyncio.Event,
) -> None:
    """Watch until `stop` is set; `started` is called once kopf has put up its signal handlers.

    Raises what kopf cannot survive: a resource definition that was deleted, credentials that
    are refused. Cancels, when it ends, every task that was started after it.
    """
    registry = kopf.OperatorRegistry()
    register(registry, reported=reported)
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
