"""Before watching: are the resource definitions there, and may we list? kopf would exit if not."""

import asyncio
import logging
from collections.abc import Callable

from rollcall_operator.kube.client import KubeClient
from rollcall_operator.kube.errors import ApiError, RefusedError, UnreachableError
from rollcall_operator.kube.resources import NODES, RL_JOBS, ROLLOUT_POOLS

log = logging.getLogger(__name__)

_RETRY_SECONDS = 2.0


async def wait_for_definitions(
    client: KubeClient, *, namespaces: tuple[str, ...], tell: Callable[[str], None]
) -> None:
    """Wait, without end, until both kinds can be listed; `tell` gets what is missing, once each.

    Asks only what a namespaced operator may ask. A definition that was just created answers 429
    or 404 for a moment.
    """
    told = ""
    while True:
        problem = await _problem(client, namespaces)
        if not problem:
            return
        if problem != told:
            log.warning("Waiting: %s", problem)
            tell(problem)
            told = problem
        await asyncio.sleep(_RETRY_SECONDS)


async def may_watch_nodes(client: KubeClient) -> bool:
    """Whether nodes can be listed; says so once when they cannot. Waits for an answer."""
    while True:
        try:
            await client.probe(NODES, namespace=None)
        except RefusedError as error:
            log.warning(
                "Nodes are not watched (no right to list them: %s): rollouts do not leave ahead of "
                "a node's end, and a trainer on a lost node waits until the node is removed",
                error.reason,
            )
            return False
        except (ApiError, UnreachableError) as error:
            log.debug("Asking whether nodes can be listed: %s", error)
        else:
            return True
        await asyncio.sleep(_RETRY_SECONDS)


async def _problem(client: KubeClient, namespaces: tuple[str, ...]) -> str:
    for resource in (RL_JOBS, ROLLOUT_POOLS):
        name = f"{resource.plural}.{resource.group}"
        if not await _discovered(client, resource.group, resource.plural):
            return f"no {name}: apply the files of crds/ (or install the chart with its CRDs)"
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
