"""The probes say what is wrong, whatever the worker's own event loop and endpoints do."""

import asyncio
import time
from pathlib import Path
from urllib.request import urlopen

import aiohttp
import pytest

from rollcall_runtime.worker import metrics_server
from rollcall_runtime.worker.metrics_server import MetricsServer
from rollcall_runtime.worker.telemetry import RolloutMetrics

JOB = {"namespace": "default", "job": "reverse", "group": "default"}


async def test_health_says_what_is_wrong(unused_tcp_port: int) -> None:
    problem = ""
    metrics = RolloutMetrics(pool="cpu", **JOB)
    server = MetricsServer(metrics, healthy=lambda: problem, ready=lambda: "no stream")
    await server.start("127.0.0.1", unused_tcp_port)
    base = f"http://127.0.0.1:{unused_tcp_port}"
    try:
        async with aiohttp.ClientSession() as session:
            async with session.get(f"{base}/healthz") as answer:
                assert (answer.status, await answer.text()) == (200, "ok")
            problem = "generation is stuck"
            async with session.get(f"{base}/healthz") as answer:
                assert (answer.status, await answer.text()) == (503, problem)
            async with session.get(f"{base}/readyz") as answer:
                assert answer.status == 503
            async with session.get(f"{base}/metrics") as answer:
                assert "rollcall_weight_version" in await answer.text()
                assert "process_cpu_seconds_total" in await answer.text()
    finally:
        await server.stop()


@pytest.mark.parametrize("fails", [None, TimeoutError(), RuntimeError("vLLM is not started")])
async def test_an_engines_own_metrics_stand_behind_the_workers(
    unused_tcp_port: int, caplog: pytest.LogCaptureFixture, fails: Exception | None
) -> None:
    async def engines() -> bytes:
        if fails is not None:
            raise fails
        return b"vllm:num_requests_running 3.0\n"

    server = MetricsServer(
        RolloutMetrics(pool="cpu", **JOB), healthy=lambda: "", ready=lambda: "", engines=engines
    )
    await server.start("127.0.0.1", unused_tcp_port)
    try:
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{unused_tcp_port}/metrics") as answer,
        ):
            lines = (await answer.text()).splitlines()
    finally:
        await server.stop()
    assert any(line.startswith("rollcall_weight_version") for line in lines)
    assert ("vllm:num_requests_running 3.0" in lines) == (fails is None)
    assert ("without the engine's own" in caplog.text) == (fails is not None)


async def test_a_worker_that_is_busy_is_healthy_until_it_is_stuck(
    unused_tcp_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_server, "STUCK_SECONDS", 1.0)
    server = MetricsServer(RolloutMetrics(pool="cpu", **JOB), healthy=lambda: "", ready=lambda: "")
    await server.start("127.0.0.1", unused_tcp_port)
    statuses: list[int] = []

    def probe() -> None:
        for seconds in (0.3, 1.5):
            time.sleep(seconds)
            try:
                with urlopen(f"http://127.0.0.1:{unused_tcp_port}/healthz", timeout=5) as answer:
                    statuses.append(answer.status)
            except OSError as error:
                statuses.append(getattr(error, "code", 0))

    try:
        probing = asyncio.get_running_loop().run_in_executor(None, probe)
        time.sleep(2.5)  # noqa: ASYNC251 - the worker's loop does not run
        await probing
        assert statuses == [200, 503]
    finally:
        await server.stop()


async def test_files_are_given_once_they_are_there(unused_tcp_port: int, tmp_path: Path) -> None:
    file = tmp_path / "history.jsonl"
    server = MetricsServer(
        RolloutMetrics(pool="cpu", **JOB),
        healthy=lambda: "",
        ready=lambda: "",
        files={"/history": file},
    )
    await server.start("127.0.0.1", unused_tcp_port)
    url = f"http://127.0.0.1:{unused_tcp_port}/history"
    try:
        async with aiohttp.ClientSession() as session:
            async with session.get(url) as answer:
                assert answer.status == 404
            file.write_text("{}\n")
            async with session.get(url) as answer:
                assert (answer.status, await answer.text()) == (200, "{}\n")
    finally:
        await server.stop()
