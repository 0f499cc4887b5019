"""Probes: 200 while nothing is wrong, 503 with the reason when something is."""

from collections.abc import AsyncIterator

import aiohttp
import pytest

from rollcall_operator.telemetry.metrics import OperatorMetrics
from rollcall_operator.telemetry.probes import Heartbeat, ProbeServer


class Health:
    """What the checks say."""

    live = ""
    ready = "starting"


@pytest.fixture
def health() -> Health:
    return Health()


@pytest.fixture
async def url(health: Health) -> AsyncIterator[str]:
    server = ProbeServer(
        metrics=OperatorMetrics(), live=lambda: health.live, ready=lambda: health.ready
    )
    await server.start(host="127.0.0.1", port=0)
    yield f"http://127.0.0.1:{server.port}"
    await server.close()


async def get(url: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return response.status, (await response.text()).strip()


async def test_live_and_ready_are_separate(url: str, health: Health) -> None:
    assert await get(f"{url}/healthz") == (200, "ok")
    assert await get(f"{url}/readyz") == (503, "starting")
    health.ready, health.live = "", "stuck for over 120 s"
    assert await get(f"{url}/readyz") == (200, "ok")
    assert await get(f"{url}/healthz") == (503, "stuck for over 120 s")


async def test_metrics_are_on_the_same_port(url: str) -> None:
    status, text = await get(f"{url}/metrics")
    assert status == 200
    assert "rollcall_queue_depth 0.0" in text


def test_a_loop_that_does_not_beat_is_a_problem() -> None:
    now = 0.0
    heartbeat = Heartbeat(bound=10.0, clock=lambda: now)
    assert heartbeat.problem() == ""
    now = 11.0
    assert "11 s late" in heartbeat.problem()
