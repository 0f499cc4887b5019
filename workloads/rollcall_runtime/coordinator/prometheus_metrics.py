"""Implements the coordinator's metrics with Prometheus and log lines."""

import logging
from collections.abc import Mapping
from typing import Any

from rollcall_protocol.prompts.prompt_ledger import PromptLedger, RejectionReason
from rollcall_protocol.wire.job_snapshot import SessionReport, SuspicionCause, TimeBound
from rollcall_protocol.wire.reward_errors import RewardErrorKind
from rollcall_runtime.coordinator.sync_group_driver import Publication
from rollcall_runtime.worker.telemetry import TrainerMetrics

log = logging.getLogger(__name__)


class PrometheusCoordinatorMetrics:
    """`fields` are the fields of all log lines; the epoch in them is kept current."""

    def __init__(self, metrics: TrainerMetrics, fields: dict[str, Any]) -> None:
        self._metrics, self._fields = metrics, fields
        self._ledger: PromptLedger | None = None
        # What a checkpoint has counted: Prometheus would add all of it again after a restart. What
        # it restores without an outcome counts as dispatched by this process.
        self._before: Mapping[str, int] = {}
        self._resumed_tokens = self._dropped = 0  # counted so far
        metrics.watch_prompts(self._outcomes, self._in_flight)

    def refused(self, what: str) -> None:
        """Count a refused request or message."""
        self._metrics.refused(what=what).inc()

    def reward_failed(self, kind: RewardErrorKind) -> None:
        """Count a sample without a usable reward."""
        self._metrics.reward_errors(kind=kind.value).inc()

    def session_formed(self, report: SessionReport) -> None:
        """Record the session; all later log lines carry its epoch."""
        session, metrics = report.session, self._metrics
        self._fields["epoch"] = session.epoch
        metrics.epoch.set(session.epoch)
        metrics.session_attempt.set(session.attempt)
        metrics.members.set(report.members)
        metrics.rebuild_seconds(cause=report.cause.value).observe(report.seconds)
        log.info(
            "session %s formed: %d members, %.3f s after %s %s",
            session,
            report.members,
            report.seconds,
            report.cause.value,
            report.detail,
        )

    def session_timed_out(self, bound: TimeBound) -> None:
        """Count a session that ended for lack of time."""
        self._metrics.sessions_timed_out(bound=bound.value).inc()

    def suspected(self, cause: SuspicionCause, seconds: float) -> None:
        """Record how long the detection took."""
        self._metrics.detect_seconds(cause=cause.value).observe(seconds)

    def published(self, publication: Publication) -> None:
        """Record a version that the live session serves."""
        metrics = self._metrics
        metrics.weight_version.set(publication.version.number)
        metrics.sync_seconds.observe(publication.stage_seconds + publication.commit_seconds)
        metrics.stage_seconds.observe(publication.stage_seconds)
        metrics.commit_seconds.observe(publication.commit_seconds)
        metrics.sync_bytes.inc(publication.received_bytes)
        metrics.deltas.inc(publication.delta)
        log.info(
            "version %d published: %d members, staged in %.3f s, committed in %.3f s",
            publication.version.number,
            publication.members,
            publication.stage_seconds,
            publication.commit_seconds,
        )

    def prompts(self, ledger: PromptLedger) -> None:
        """Keep the ledger; its totals are read at each scrape."""
        if self._ledger is None:
            self._before = _counted(ledger) | {"dispatched": ledger.dispatched - ledger.in_flight}
            self._resumed_tokens = ledger.resumed_tokens
            self._dropped = ledger.rejected[RejectionReason.STALE]
        self._ledger = ledger
        self._metrics.buffer_depth.set(ledger.buffered)
        self._metrics.resumed_tokens.inc(ledger.resumed_tokens - self._resumed_tokens)
        self._resumed_tokens = ledger.resumed_tokens
        dropped = ledger.rejected[RejectionReason.STALE]
        self._metrics.off_policy_dropped.inc(dropped - self._dropped)
        self._dropped = dropped

    def _in_flight(self) -> float:
        return self._ledger.in_flight if self._ledger is not None else 0

    def _outcomes(self) -> Mapping[str, int]:
        if self._ledger is None:
            return {}
        counted = _counted(self._ledger)
        return {name: count - self._before.get(name, 0) for name, count in counted.items()}


def _counted(ledger: PromptLedger) -> dict[str, int]:
    """The ledger's totals, those of a checkpoint included."""
    rejected = {f"rejected_{why.value}": count for why, count in ledger.rejected.items()}
    return {
        "dispatched": ledger.dispatched,
        "accepted": ledger.accepted,
        "requeued": ledger.requeued,
        "rejected": ledger.rejected.total(),
        "duplicate": ledger.duplicates,
        "skipped": ledger.skipped,
        "truncated": ledger.truncated,
        **rejected,
    }
