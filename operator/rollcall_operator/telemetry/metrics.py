"""The operator's metrics, on a registry of its own. Labels never hold pod names or uids."""

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.process_collector import ProcessCollector

from rollcall_operator.telemetry.job_metrics import JobMetricsCollector

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
RESULTS = ("ok", "retry", "error", "timeout")
"""Of a reconcile."""


class OperatorMetrics:
    """All metrics of the operator. Queue, links and API client report through its methods."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.jobs = JobMetricsCollector()
        self.registry.register(self.jobs)
        ProcessCollector(registry=self.registry)
        self._reconcile_seconds = Histogram(
            "rollcall_reconcile_seconds",
            "Seconds that one reconcile of a job took, by result (ok, retry, error, timeout).",
            ["result"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        # Prometheus sees no increase of a counter whose first sample is above 0.
        for result in RESULTS:
            self._reconcile_seconds.labels(result)
        self._queue_depth = Gauge(
            "rollcall_queue_depth", "Jobs that wait to be reconciled.", registry=self.registry
        )
        self._api_requests = Counter(
            "rollcall_api_requests",
            "Requests to the API server by verb, resource and HTTP status (0: no answer).",
            ["verb", "resource", "status"],
            registry=self.registry,
        )
        self._events_seen = Counter(
            "rollcall_watch_events",
            "Watch events received from the API server, by resource.",
            ["resource"],
            registry=self.registry,
        )
        self._links = Gauge(
            "rollcall_coordinator_streams",
            "Coordinators to which the operator has an open stream.",
            registry=self.registry,
        )
        self._pushes = Counter(
            "rollcall_roster_pushes",
            "Roster pushes to coordinators, by result (accepted, refused, failed).",
            ["result"],
            registry=self.registry,
        )
        self._refused_snapshots = Counter(
            "rollcall_snapshots_refused",
            "Coordinator snapshots that the operator dropped, by reason (malformed, other_pod).",
            ["reason"],
            registry=self.registry,
        )
        self._leader = Gauge(
            "rollcall_leader",
            "1 while this process is the leader (holds the Lease).",
            registry=self.registry,
        )

    def queue_depth(self, waiting: int) -> None:
        """So many jobs wait to be reconciled now."""
        self._queue_depth.set(waiting)

    def reconciled(self, *, seconds: float, result: str) -> None:
        """One reconcile ended after `seconds`; `result` is ok, retry, error or timeout."""
        self._reconcile_seconds.labels(result).observe(seconds)

    def api_request(self, verb: str, resource: str, status: int) -> None:
        """One request to the API server ended."""
        self._api_requests.labels(verb, resource, str(status)).inc()

    def event_seen(self, resource: str) -> None:
        """One watch event arrived."""
        self._events_seen.labels(resource).inc()

    def link_connected(self, *, up: bool) -> None:
        """A coordinator stream opened or ended."""
        if up:
            self._links.inc()
        else:
            self._links.dec()

    def roster_pushed(self, result: str) -> None:
        """A push of a roster ended."""
        self._pushes.labels(result).inc()

    def snapshot_refused(self, reason: str) -> None:
        """A coordinator's snapshot was dropped."""
        self._refused_snapshots.labels(reason).inc()

    def leading(self, *, held: bool) -> None:
        """The Lease was acquired or given up."""
        self._leader.set(1 if held else 0)

    def expose(self, names: Sequence[str] = ()) -> tuple[bytes, str]:
        """The page and its content type; with `names` of series, the metrics that have them.

        May be called in another thread.
        """
        registry = self.registry.restricted_registry(names) if names else self.registry
        return generate_latest(registry), CONTENT_TYPE_LATEST
