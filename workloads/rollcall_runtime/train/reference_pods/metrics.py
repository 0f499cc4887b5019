"""The metrics of a reference pod."""

from rollcall_runtime.worker.telemetry import Metrics


class ReferenceMetrics(Metrics):
    """What it answered, and what it refused."""

    def __init__(self, *, namespace: str, job: str) -> None:
        super().__init__({"namespace": namespace, "job": job})
        self.rows = self.counter("reference_rows", "Rows whose log-probabilities were computed.")
        self.seconds = self.histogram(
            "reference_seconds",
            "Seconds from a request's last byte to its log-probabilities, other requests included.",
        )
        self.refused = self.counters(
            "refused", "Requests that the reference pod refused, by reason.", "what"
        )

    def answered(self, *, rows: int, seconds: float) -> None:
        """Count a request's rows and the seconds that it took."""
        self.rows.inc(rows)
        self.seconds.observe(seconds)
