"""The coordinator's events as metrics and log lines."""

import logging
from collections.abc import Mapping
from typing import Any

from rollcall_protocol.prompts.prompt_ledger import PromptLedger
from rollcall_protocol.wire.job_snapshot import SessionReport, SuspicionCause
from rollcall_runtime.coordinator.metrics import Delivery
from rollcall_runtime.worker.telemetry import TrainerMetrics

log = logging.getLogger(__name__)


class PrometheusCoordinatorMetrics:
    """`fields` are those of the log lines: the epoch is kept current in them."""

    def __init__(self, metrics: TrainerMetrics, fields: dict[str, Any]) -> None:
        self._metrics, self._fields = metrics, fields
        self._ledger: PromptLedger | None = None
        self._moved_tokens = 0  # counted
        metrics.watch_prompts(self._outcomes)

    def refused(self, what: str) -> None:
        """Count it: somebody spoke who may not, or who is late."""
        self._metrics.refused(what=what).inc()

    def session_formed(self, report: SessionReport) -> None:
        """Note the session; its epoch goes into every log line from now on."""
        session, metrics = report.session, self._metrics
        self._fields["epoch"] = session.epoch
        metrics.epoch.set(session.epoch)
        metrics.session_attempt.set(session.attempt)
        metrics.members.set(report.members)
        metrics.rebuilds(cause=report.cause.value).inc()
        metrics.rebuild_seconds.observe(report.seconds)
        log.info(
            "session %s: %d members, %.3f s after %s %s",
            session,
            report.members,
            report.seconds,
            report.cause.value,
            report.detail,
        )

    def suspected(self, cause: SuspicionCause, seconds: float) -> None:
        """Note how fast a member was found out."""
        self._metrics.detect_seconds(cause=cause.value).observe(seconds)

    def published(self, delivery: Delivery) -> None:
        """Note a version that the live session serves."""
        metrics = self._metrics
        metrics.weight_version.set(delivery.number)
        metrics.stage_seconds.observe(delivery.stage_seconds)
        metrics.commit_seconds.observe(delivery.commit_seconds)
        metrics.sync_bytes.inc(delivery.nbytes * (delivery.members - 1))
        metrics.deltas.inc(delivery.delta)
        log.info(
            "version %d: %d members, staged in %.3f s, committed in %.3f s",
            delivery.number,
            delivery.members,
            delivery.stage_seconds,
            delivery.commit_seconds,
        )

    def prompts(self, ledger: PromptLedger) -> None:
        """Keep the ledger: its totals are read when somebody asks."""
        self._ledger = ledger
        self._metrics.buffer_depth.set(ledger.buffered)
        self._metrics.moved_tokens.inc(ledger.moved_tokens - self._moved_tokens)
        self._moved_tokens = ledger.moved_tokens

    def _outcomes(self) -> Mapping[str, int]:
        ledger = self._ledger
        if ledger is None:
            return {}
        rejected = {f"rejected_{why.value}": count for why, count in ledger.rejected.items()}
        return {
            "dispatched": ledger.dispatched,
            "accepted": ledger.accepted,
            "requeued": ledger.requeued,
            "rejected": ledger.rejected.total(),
            "in_flight": ledger.in_flight,
            "duplicate": ledger.duplicates,
            **rejected,
        }
