"""The ledger's figures as metrics, also after a restart."""

import pytest

from rollcall_protocol.prompts.prompt_ledger import RejectionReason
from rollcall_protocol.wire.ids import Lineage, Version
from rollcall_protocol.wire.job_snapshot import TimeBound
from rollcall_runtime.coordinator.prometheus_metrics import PrometheusCoordinatorMetrics
from rollcall_runtime.coordinator.sync_group_driver import Publication
from rollcall_runtime.worker.telemetry import TrainerMetrics
from tests.unit.rollcall_protocol.prompts.ledger_helpers import (
    A,
    B,
    done,
    leases,
    ledger,
    progress_of,
    response,
)


def test_prompts_that_became_too_old_are_counted_as_dropped() -> None:
    metrics = TrainerMetrics(namespace="default", job="reverse", group="default")
    observer = PrometheusCoordinatorMetrics(metrics, {})
    prompts = ledger()
    observer.prompts(prompts)
    leases(prompts, A, 1)
    prompts.rejected[RejectionReason.STALE] += 2
    prompts.rejected[RejectionReason.NO_REWARD] += 1
    for _ in range(2):
        observer.prompts(prompts)
    value = metrics.registry.get_sample_value
    assert value("rollcall_off_policy_dropped_total", metrics.labels) == 2
    assert value("rollcall_prompts_in_flight", metrics.labels) == 1


def test_a_publication_is_timed_whole_and_in_its_phases() -> None:
    metrics = TrainerMetrics(namespace="default", job="reverse", group="default")
    version = Version(Lineage(1, 1), 3)
    publication = Publication(version, 3, 800, stage_seconds=2.0, commit_seconds=0.5, delta=False)
    PrometheusCoordinatorMetrics(metrics, {}).published(publication)
    value = metrics.registry.get_sample_value
    sums = {"": 2.5, "stage_": 2.0, "commit_": 0.5}
    for phase, seconds in sums.items():
        assert value(f"rollcall_param_sync_{phase}seconds_sum", metrics.labels) == seconds


def test_resumed_tokens_are_counted_once() -> None:
    metrics = TrainerMetrics(namespace="default", job="reverse", group="default")
    observer = PrometheusCoordinatorMetrics(metrics, {})
    prompts = ledger()
    observer.prompts(prompts)
    (lease,) = leases(prompts, A, 1)
    prompts.report_progress(progress_of(lease, response(3, 4), response(5)), A, 1)
    prompts.rollout_lost(A)
    leases(prompts, B, 1)
    for _ in range(2):
        observer.prompts(prompts)
    value = metrics.registry.get_sample_value
    assert value("rollcall_resumed_tokens_total", metrics.labels) == 3


def test_what_a_checkpoint_has_counted_is_not_counted_again() -> None:
    """Prometheus takes a counter that a new process begins with for an increase."""
    prompts = ledger()
    (lease,) = leases(prompts, A, 1)
    prompts.report_progress(progress_of(lease, response(3, 4), response(5)), A, 1)
    restored = ledger(state=prompts.state())
    metrics = TrainerMetrics(namespace="default", job="reverse", group="default")
    observer = PrometheusCoordinatorMetrics(metrics, {})
    observer.prompts(restored)

    def counted(outcome: str) -> float | None:
        labels = metrics.labels | {"outcome": outcome}
        return metrics.registry.get_sample_value("rollcall_prompts_total", labels)

    assert (counted("dispatched"), counted("requeued")) == (0, 0)
    leases(restored, B, 1)
    observer.prompts(restored)
    assert (counted("dispatched"), counted("requeued")) == (1, 0)
    value = metrics.registry.get_sample_value
    assert value("rollcall_resumed_tokens_total", metrics.labels) == 3


@pytest.mark.parametrize("restart", [False, True])
def test_each_dispatched_prompt_is_counted_once(restart: bool) -> None:
    prompts = ledger()
    for lease in leases(prompts, A, 4)[:2]:
        prompts.complete(done(A, lease))
    if restart:
        prompts = ledger(state=prompts.state())
    metrics = TrainerMetrics(namespace="default", job="reverse", group="default")
    PrometheusCoordinatorMetrics(metrics, {}).prompts(prompts)
    value, labels = metrics.registry.get_sample_value, metrics.labels
    found = {
        outcome: value("rollcall_prompts_total", labels | {"outcome": outcome}) or 0
        for outcome in ("dispatched", "accepted", "rejected", "requeued")
    }
    in_flight = value("rollcall_prompts_in_flight", labels) or 0
    assert in_flight > 0
    ended = found["accepted"] + found["rejected"] + found["requeued"]
    assert found["dispatched"] == ended + in_flight


def test_sessions_that_timed_out_are_counted_by_the_bound_that_passed() -> None:
    metrics = TrainerMetrics(namespace="n", job="j", group="default")
    counts = PrometheusCoordinatorMetrics(metrics, {})
    counts.session_timed_out(TimeBound.JOIN)
    name = "rollcall_sessions_timed_out_total"
    seen = {
        bound: metrics.registry.get_sample_value(name, metrics.labels | {"bound": bound.value})
        for bound in TimeBound
    }
    assert seen == dict.fromkeys(TimeBound, 0.0) | {TimeBound.JOIN: 1.0}
