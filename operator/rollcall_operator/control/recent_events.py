"""Events about objects of jobs. They are not watched: few of them say what no object says."""

import asyncio
from collections.abc import Callable

from rollcall_operator.kube.client import KubeClient, Object
from rollcall_operator.kube.resources import EVENTS

SHARED_SECONDS = 5.0
"""How long what was read of a namespace serves all jobs in it."""


class RecentEvents:
    """The API server has no index of events: a LIST with a field selector reads all of a namespace.
    So one is made at a time, and jobs of a namespace share what it found.
    """

    def __init__(self, client: KubeClient, *, clock: Callable[[], float]) -> None:
        """`clock` gives seconds."""
        self._client, self._clock = client, clock
        self._one_at_a_time = asyncio.Lock()
        self._found: dict[tuple[str, str], tuple[float, tuple[Object, ...]]] = {}

    async def with_reason(self, namespace: str, reason: str) -> tuple[Object, ...]:
        """Events of this reason, SHARED_SECONDS old at most; raises the client's errors."""
        key = namespace, reason
        async with self._one_at_a_time:
            oldest = self._clock() - SHARED_SECONDS
            self._found = {k: found for k, found in self._found.items() if found[0] > oldest}
            if key not in self._found:
                fields = f"reason={reason}"
                events = await self._client.list(EVENTS, namespace=namespace, fields=fields)
                self._found[key] = self._clock(), events
            return self._found[key][1]
