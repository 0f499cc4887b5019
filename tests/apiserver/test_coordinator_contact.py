"""Whatever hides a coordinator from the operator is a condition within 15 s, and ends with it."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from rollcall_operator.kube.client import Object
from rollcall_operator.kube.resources import RL_JOBS, ROLLOUT_POOLS
from rollcall_protocol import pod_contract
from tests.apiserver.cluster_user import ClusterUser, eventually, example
from tests.apiserver.coordinator import Coordinator
from tests.apiserver.kubelet import kubelet, rollouts

SECONDS = 15.0
RouteHandler = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def says_nothing(_: web.Request) -> web.StreamResponse:
    await asyncio.sleep(60)
    return web.Response()


async def knows_no_such_route(_: web.Request) -> web.StreamResponse:
    return web.json_response({"error": "no such route"}, status=404)


async def refuses_the_token(_: web.Request) -> web.StreamResponse:
    return web.json_response({"error": "bad token"}, status=401)


@asynccontextmanager
async def another_server(
    coordinator: Coordinator, handler: RouteHandler | None
) -> AsyncIterator[None]:
    """Listens in the coordinator's place; nothing does, if there is no handler."""
    if handler is None:
        yield
        return
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(
        runner,
        coordinator.address,
        pod_contract.MEMBERSHIP_PORT,
        ssl_context=coordinator.certificate,
    ).start()
    try:
        yield
    finally:
        await runner.cleanup()


async def condition(user: ClusterUser, reason: str, *, seconds: float) -> Object:
    async def there() -> Object | None:
        found = await user.condition(RL_JOBS, "reverse", "CoordinatorConnected")
        return found if found and found["reason"] == reason else None

    return await eventually(there, f"CoordinatorConnected: {reason}", seconds=seconds)


@pytest.mark.usefixtures("direct_operator")
@pytest.mark.parametrize(
    ("handler", "reason"),
    [
        (None, "CoordinatorUnreachable"),
        (says_nothing, "CoordinatorSilent"),
        (refuses_the_token, "CoordinatorRefuses"),
        (knows_no_such_route, "CoordinatorIncompatible"),
    ],
    ids=["closed", "silent", "refuses", "another version"],
)
async def test_what_hides_the_coordinator_is_reported_in_time_and_marks_the_status_as_old(
    user: ClusterUser, handler: RouteHandler | None, reason: str
) -> None:
    async with kubelet(user) as node:
        await user.apply(example(replicas=1))
        await rollouts(user, 1)
        await condition(user, "Connected", seconds=30)
        coordinator, since = node.coordinator, time.monotonic()
        await coordinator.stop()
        async with another_server(coordinator, handler):
            found = await condition(user, reason, seconds=SECONDS)
            assert time.monotonic() - since < SECONDS
            assert "has not reported to the operator since" in found["message"]
            job = await user.get(RL_JOBS, "reverse")
            assert job["status"]["phase"] == "Unknown"

            async def pool_is_stale() -> str | None:
                # The operator writes the pool's status after the job's.
                pool = await user.get(ROLLOUT_POOLS, "reverse-cpu")
                since = pool["status"].get("staleSince")
                return str(since) if since else None

            since_pool = await eventually(pool_is_stale, "staleSince of the pool")
            assert job["status"]["staleSince"] <= since_pool
            assert "Unknown" in user.kubectl("get", "rljob", "reverse")
        await coordinator.start_again()
        await condition(user, "Connected", seconds=30)

        async def current() -> bool:
            status = (await user.get(RL_JOBS, "reverse"))["status"]
            return status["phase"] == "Running" and "staleSince" not in status

        await eventually(current, "a status that is current again")
