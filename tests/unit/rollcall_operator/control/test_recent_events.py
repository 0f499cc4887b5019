"""One LIST of a namespace's events serves all jobs in it for some seconds."""

import asyncio
from typing import TYPE_CHECKING, Any, cast

import pytest

from rollcall_operator.control.recent_events import SHARED_SECONDS, RecentEvents
from rollcall_operator.kube.errors import UnreachableError

if TYPE_CHECKING:
    from rollcall_operator.kube.client import KubeClient


class Server:
    """Answers a LIST with how many there were before it."""

    def __init__(self) -> None:
        self.lists: list[tuple[str, str]] = []
        self.now = 0.0
        self.fails = False
        self.events = RecentEvents(cast("KubeClient", self), clock=lambda: self.now)

    async def list(self, _resource: object, *, namespace: str, fields: str) -> tuple[Any, ...]:
        self.lists.append((namespace, fields))
        await asyncio.sleep(0)
        if self.fails:
            raise UnreachableError("no answer")
        return ({"number": len(self.lists)},)


async def test_jobs_of_a_namespace_share_what_was_read() -> None:
    server = Server()
    asked = (server.events.with_reason("a", "FailedMount") for _ in range(20))
    assert await asyncio.gather(*asked) == [({"number": 1},)] * 20
    assert server.lists == [("a", "reason=FailedMount")]


async def test_another_namespace_and_another_reason_are_read_for_themselves() -> None:
    server = Server()
    for namespace, reason in (("a", "x"), ("b", "x"), ("a", "y")):
        await server.events.with_reason(namespace, reason)
    assert len(server.lists) == 3


async def test_what_is_old_is_read_again() -> None:
    server = Server()
    for server.now in (0.0, SHARED_SECONDS - 1, SHARED_SECONDS):
        answer = await server.events.with_reason("a", "FailedMount")
    assert answer == ({"number": 2},)


async def test_a_failure_is_reported_and_not_remembered() -> None:
    server = Server()
    server.fails = True
    with pytest.raises(UnreachableError):
        await server.events.with_reason("a", "FailedMount")
    server.fails = False
    assert await server.events.with_reason("a", "FailedMount") == ({"number": 2},)
