"""How many pods are ready, followed by a WATCH as any client would."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from rollcall_operator.kube.resources import PODS
from rollcall_operator.kube.watch import Watch
from tests.apiserver.kubelet import is_ready

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from rollcall_operator.kube.client import KubeClient


class PodCount:
    """How many pods of a namespace are ready, as long as `watch` runs."""

    def __init__(self, client: KubeClient, *, namespace: str) -> None:
        self.ready = 0
        self._changed = asyncio.Event()
        self.watch: Watch[bool] = Watch(
            client,
            PODS,
            namespace=namespace,
            reduce=is_ready,
            changed=self._count,
            delay=lambda _: 1.0,
        )

    async def reaches(self, wanted: int, *, seconds: float) -> None:
        """Wait until so many are ready; TimeoutError with how many were."""
        try:
            async with asyncio.timeout(seconds):
                while self.ready != wanted:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError as error:
            raise TimeoutError(f"{self.ready} of {wanted} pods ready in {seconds:.0f} s") from error

    def _count(self, before: bool | None, now: bool | None) -> None:
        self.ready += bool(now) - bool(before)
        self._changed.set()


@contextlib.asynccontextmanager
async def counted_pods(client: KubeClient, *, namespace: str) -> AsyncIterator[PodCount]:
    """Follows the pods until the context ends."""
    count = PodCount(client, namespace=namespace)
    task = asyncio.create_task(count.watch.run())
    try:
        await count.watch.listed.wait()
        yield count
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
