"""The operator's connection to a coordinator, in this process."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from rollcall_operator.control.coordinator_link import CoordinatorLink, LinkSettings
from rollcall_operator.kube.pod_dialer import PodAddress, PodDialer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class _Credentials:
    async def token(self) -> str:
        return "the operator's token"

    def refused(self) -> None:
        return


class _Metrics:
    def link_connected(self, *, up: bool) -> None:
        return

    def roster_pushed(self, result: str) -> None:
        return

    def snapshot_refused(self, reason: str) -> None:
        return


@contextlib.asynccontextmanager
async def watched_coordinator(port: int, pod_uid: str) -> AsyncIterator[CoordinatorLink]:
    """A link to the coordinator of the pod at `port` of this machine."""
    dialer = PodDialer(None, direct=True)
    link = CoordinatorLink(
        pod=PodAddress("attacks", "hostile-trainer-0", pod_uid, "127.0.0.1"),
        credentials=_Credentials(),
        dialer=dialer,
        notify=lambda _: None,
        progressed=lambda: None,
        metrics=_Metrics(),
        settings=LinkSettings(port=port),
    )
    link.start()
    try:
        yield link
    finally:
        await link.close()
        await dialer.close()
