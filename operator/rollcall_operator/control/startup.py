"""Checks before watching: the CRDs are installed and may be listed. kopf would exit otherwise."""

import asyncio
import logging
from collections.abc import Callable

from rollcall_operator.kube.client import KubeClient
from rollcall_operator.kube.errors import ApiError, RefusedError, UnreachableError
from rollcall_operator.kube.resources import NODES, RL_JOBS, ROLLOUT_POOLS

log = logging.getLogger(__name__)

_RETRY_SECONDS = 2.0


async def wait_for_definitions(
    client: KubeClient, *, namespaces: tuple[str, ...], report: Callable[[str], None]
) -> None:
    """Wait, without end, until both kinds can be listed; `report` gets each new problem.

    Makes only requests that a namespaced operator may make. The API server answers 429 or 404 for
    a moment after a definition was created.
    """
    reported = ""
    while True:
        problem = await _problem(client, namespaces)
        if not problem:
            return
        if problem != reported:
            log.warning("Waiting until resources can be watched: %s", problem)
            report(problem)
            reported = problem
        await asyncio.sleep(_RETRY_SECONDS)


async def may_watch_nodes(client: KubeClient) -> bool:
    """Whether nodes can be listed; logs a warning if not. Waits for an answer without end."""
    while True:
        try:
            await client.probe(NODES, namespace=None)
        except RefusedError as error:
            log.warning(
                "Nodes are not watched, as the operator may not list them (%s): rollouts do not "
                "leave a node before it terminates, and a trainer on a node that does not respond "
                "is replaced only when the node is deleted",
                error.reason,
            )
            return False
        except (ApiError, UnreachableError) as error:
            log.debug("Cannot find out whether nodes may be listed: %s", error)
        else:
            return True
        await asyncio.sleep(_RETRY_SECONDS)


async def _problem(client: KubeClient, namespaces: tuple[str, ...]) -> str:
    for resource in (RL_JOBS, ROLLOUT_POOLS):
        name = f"{resource.plural}.{resource.group}"
        if not await _discovered(client, resource.group, resource.plural):
            return f"CRD {name} is not installed; apply crds/, or install the chart with its CRDs"
        for namespace in namespaces or (None,):
            try:
                await client.probe(resource, namespace=namespace)
            except (ApiError, UnreachableError) as error:
                return f"cannot list {name}: {error}"
    return ""


async def _discovered(client: KubeClient, group: str, plural: str) -> bool:
    try:
        return plural in await client.plurals(group)
    except (ApiError, UnreachableError) as error:
        log.debug("Discovery of %s: %s", group, error)
        return False
