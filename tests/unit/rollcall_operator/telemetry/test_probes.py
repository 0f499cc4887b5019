"""Probes: 200 while nothing is wrong, 503 with the reason when something is."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Sequence

import aiohttp
import pytest

from rollcall_operator.telemetry.metrics import OperatorMetrics
from rollcall_operator.telemetry.probes import EventLoopProbe, ProbeServer


class Health:
    """What the checks say."""

    live = ""
    ready = "starting"


@pytest.fixture
def health() -> Health:
    return Health()


async def test_an_empty_host_listens_on_all_addresses_of_both_families(health: Health) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    metrics = OperatorMetrics()
    server = ProbeServer(metrics=metrics, live=lambda: health.live, ready=lambda: health.ready)
    await server.start(host="", port=port)
    try:
        for host in ("127.0.0.1", *(["[::1]"] if socket.has_ipv6 and has_loopback6() else [])):
            async with aiohttp.request("GET", f"http://{host}:{port}/healthz") as response:
                assert response.status == 200, host
    finally:
        await server.close()


def has_loopback6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


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
    assert "rollcall_leader" in text


async def test_a_page_may_be_of_some_series_alone(url: str) -> None:
    status, text = await get(f"{url}/metrics?name[]=rollcall_queue_depth")
    assert status == 200
    assert [line for line in text.splitlines() if line[0] != "#"] == ["rollcall_queue_depth 0.0"]


async def test_while_a_long_page_is_made_the_event_loop_goes_on() -> None:
    class SlowMetrics(OperatorMetrics):
        def expose(self, names: Sequence[str] = ()) -> tuple[bytes, str]:
            time.sleep(0.5)
            return b"slow", "text/plain"

    server = ProbeServer(metrics=SlowMetrics(), live=lambda: "", ready=lambda: "")
    await server.start(host="127.0.0.1", port=0)
    try:
        page = asyncio.create_task(get(f"http://127.0.0.1:{server.port}/metrics"))
        turns = 0
        while not page.done():
            await asyncio.sleep(0.01)
            turns += 1
    finally:
        await server.close()
    assert page.result() == (200, "slow")
    assert turns >= 10, "of some 50"


def test_a_loop_that_does_not_beat_is_a_problem() -> None:
    now = 0.0
    loop_probe = EventLoopProbe(bound=10.0, clock=lambda: now)
    assert loop_probe.problem() == ""
    now = 11.0
    assert "11 s late" in loop_probe.problem()
