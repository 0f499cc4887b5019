"""Metrics carry the job's labels; the probes say what is wrong."""

import aiohttp
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from rollcall_runtime.worker.telemetry import (
    REWARD_WINDOW,
    Metrics,
    MetricsServer,
    RolloutMetrics,
    TrainerMetrics,
)

JOB = {"namespace": "default", "job": "reverse", "group": "default"}


def served(metrics: Metrics) -> dict[str, float]:
    families = text_string_to_metric_families(generate_latest(metrics.registry).decode())
    samples = [sample for family in families for sample in family.samples]
    return {
        sample.name + "".join(f"{{{v}}}" for k, v in sample.labels.items() if k not in JOB): (
            sample.value
        )
        for sample in samples
    }


def test_the_reward_is_the_mean_of_the_newest_samples() -> None:
    metrics = RolloutMetrics(pool="cpu", **JOB)
    metrics.sampled(rewards=[0.0] * 10, tokens=60)
    metrics.sampled(rewards=[1.0] * REWARD_WINDOW, tokens=6 * REWARD_WINDOW)
    metrics.sampled(rewards=[0.0] * (REWARD_WINDOW // 2), tokens=0)
    values = served(metrics)
    assert values["rollcall_rollout_reward{cpu}"] == 0.5
    assert values["rollcall_rollout_samples_total{cpu}"] == 10 + 1.5 * REWARD_WINDOW
    assert values["rollcall_tokens_total{cpu}"] == 60 + 6 * REWARD_WINDOW


def test_the_ledgers_totals_are_read_when_asked_for() -> None:
    metrics = TrainerMetrics(**JOB)
    totals = {"dispatched": 1}
    metrics.watch_prompts(lambda: totals)
    totals["dispatched"] = 5
    assert served(metrics)["rollcall_prompts_total{dispatched}"] == 5


def test_counters_have_their_cause_as_a_label() -> None:
    metrics = TrainerMetrics(**JOB)
    metrics.rebuilds(cause="MemberLost").inc()
    metrics.refused(what="unauthenticated").inc(2)
    values = served(metrics)
    assert values["rollcall_rebuilds_total{MemberLost}"] == 1
    assert values["rollcall_refused_total{unauthenticated}"] == 2


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
