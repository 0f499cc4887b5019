"""The ledger's figures as metrics, also after a restart."""

from rollcall_runtime.train.coordinator_metrics import PrometheusCoordinatorMetrics
from rollcall_runtime.worker.telemetry import TrainerMetrics
from tests.unit.rollcall_protocol.prompts.ledger_helpers import (
    A,
    B,
    leases,
    ledger,
    progress_of,
    response,
)


def test_resumed_tokens_are_counted_once() -> None:
    metrics = TrainerMetrics(namespace="default", job="reverse", group="default")
    observer = PrometheusCoordinatorMetrics(metrics, {})
    prompts = ledger()
    (lease,) = leases(prompts, A, 1)
    prompts.report_progress(progress_of(lease, response(3, 4), response(5)), A, 1)
    prompts.rollout_lost(A)
    leases(prompts, B, 1)
    for _ in range(2):
        observer.prompts(prompts)
    value = metrics.registry.get_sample_value
    assert value("rollcall_resumed_tokens_total", metrics.labels) == 3
    restored = ledger(state=prompts.state())
    leases(restored, B, 1)
    observer = PrometheusCoordinatorMetrics(
        metrics := TrainerMetrics(namespace="default", job="reverse", group="default"), {}
    )
    observer.prompts(restored)
    value = metrics.registry.get_sample_value
    assert value("rollcall_resumed_tokens_total", metrics.labels) == 6
    outcomes = metrics.labels | {"outcome": "requeued"}
    assert value("rollcall_prompts_total", outcomes) == 2
