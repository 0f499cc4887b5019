"""What a pod of the front measures."""

from rollcall_runtime.worker.telemetry import Metrics


class FrontMetrics(Metrics):
    """The metrics of a pod of the front."""

    def __init__(self, *, namespace: str, job: str) -> None:
        super().__init__({"namespace": namespace, "job": job})
        self.requests_running = self.gauge(
            "front_requests_running", "Requests of agents that the front answers now."
        )
        self.rollouts = self.gauge(
            "front_rollouts", "Rollouts that the front may send requests to."
        )
        self.answered = self.counter("front_answers", "Requests that the front answered whole.")
        self.moved = self.counter(
            "front_moved_requests", "Times that a request was continued on another rollout."
        )
        self.tokens = self.counter("front_tokens", "Tokens that the front's whole answers have.")
        self.trajectories_kept = self.gauge(
            "front_trajectories", "Trajectories without a reward of which this pod has a copy."
        )
        self.trajectories = self.counters(
            "front_ended_trajectories",
            "Trajectories that ended, by outcome (counted, stale, untrainable, lost, ...).",
            "outcome",
        )
        self.request_seconds = self.histogram(
            "front_request_seconds", "Seconds from the start of a request to the end of its answer."
        )
        self.first_token_seconds = self.histogram(
            "front_first_token_seconds", "Seconds until the first tokens of a stream."
        )
        self.refused = self.counters(
            "refused", "Requests that the front refused, by reason.", "what"
        )
