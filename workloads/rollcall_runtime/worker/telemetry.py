"""A worker's metrics.

Labels are the job's coordinates and small sets such as causes; never pod uids or prompts.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from rollcall_protocol.wire.job_snapshot import SessionCause, TimeBound
from rollcall_protocol.wire.reward_errors import RewardErrorKind

PREFIX = "rollcall_"
REWARD_WINDOW = 256  # samples that rollout_reward is the mean of
SECONDS = (
    0.001,
    0.002,
    0.005,
    0.01,
    0.02,
    0.05,
    0.1,
    0.2,
    0.5,
    1.0,
    2.0,
    5.0,
    10.0,
    30.0,
    60.0,
    120.0,
)
VERSIONS = (0, 1, 2, 3, 4, 6, 8, 12, 16)


class Metrics:
    """A registry of this process in which every metric has the same `labels`."""

    def __init__(self, labels: Mapping[str, str]) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.labels = dict(labels)

    def gauge(self, name: str, help_text: str) -> Gauge:
        """A new gauge with the worker's labels; PREFIX is put before `name`."""
        return Gauge(PREFIX + name, help_text, self.labels, registry=self.registry).labels(
            **self.labels
        )

    def gauges(self, name: str, help_text: str, *by: str) -> Callable[..., Gauge]:
        """Gauges with further labels: `metric(part="right").set(0.5)`."""
        parent = Gauge(PREFIX + name, help_text, (*self.labels, *by), registry=self.registry)
        return lambda **values: parent.labels(**self.labels, **values)

    def counter(self, name: str, help_text: str) -> Counter:
        """A counter; `_total` is added to the name."""
        return self.counters(name, help_text)()

    def counters(self, name: str, help_text: str, *by: str) -> Callable[..., Counter]:
        """Counters with further labels: `metric(cause="MemberLost").inc()`."""
        parent = Counter(PREFIX + name, help_text, (*self.labels, *by), registry=self.registry)
        return lambda **values: parent.labels(**self.labels, **values)

    def histogram(self, name: str, help_text: str, buckets: Iterable[float] = SECONDS) -> Histogram:
        """A histogram; by default of seconds."""
        return Histogram(
            PREFIX + name, help_text, self.labels, registry=self.registry, buckets=tuple(buckets)
        ).labels(**self.labels)

    def histograms(self, name: str, help_text: str, *by: str) -> Callable[..., Histogram]:
        """Histograms of seconds with further labels."""
        parent = Histogram(
            PREFIX + name, help_text, (*self.labels, *by), registry=self.registry, buckets=SECONDS
        )
        return lambda **values: parent.labels(**self.labels, **values)

    def totals(
        self, name: str, help_text: str, by: str, read: Callable[[], Mapping[str, int]]
    ) -> None:
        """Counters whose values `read` returns at each scrape."""
        self.registry.register(_Totals(PREFIX + name, help_text, self.labels, by, read))


class _Totals(Collector):
    def __init__(
        self,
        name: str,
        help_text: str,
        labels: Mapping[str, str],
        by: str,
        read: Callable[[], Mapping[str, int]],
    ) -> None:
        self._name, self._help, self._labels, self._by = name, help_text, labels, by
        self._read = read

    def collect(self) -> Iterator[CounterMetricFamily]:
        family = CounterMetricFamily(self._name, self._help, labels=(*self._labels, self._by))
        for key, value in self._read().items():
            family.add_metric((*self._labels.values(), key), value)
        yield family


class RolloutMetrics(Metrics):
    """The metrics of a rollout pod."""

    def __init__(self, *, namespace: str, job: str, pool: str, group: str) -> None:
        super().__init__({"namespace": namespace, "job": job, "pool": pool, "group": group})
        self.weight_version = self.gauge(
            "weight_version",
            "Number of the weight version that the rollout serves; -1 before the first.",
        )
        self.weight_lag = self.gauge(
            "weight_lag_versions", "Published versions that the rollout does not serve yet."
        )
        self.requests_running = self.gauge(
            "requests_running", "Leased prompts that the rollout generates or has queued."
        )
        self.front_requests = self.gauge(
            "rollout_front_requests", "Requests of the front that the rollout answers now."
        )
        self.tokens = self.counter("tokens", "Tokens that the rollout sampled.")
        self.samples = self.counter("rollout_samples", "Samples that the rollout finished.")
        self.reward = self.gauge(
            "rollout_reward", f"Mean reward of the rollout's last {REWARD_WINDOW} samples."
        )
        self.reward_part = self.gauges(
            "rollout_reward_part",
            f"Mean number of a part of the reward in the rollout's last {REWARD_WINDOW} samples.",
            "part",
        )
        self.drain_seconds = self.gauge("drain_seconds", "Seconds that the drain took.")
        self.epoch = self.gauge("epoch", "Epoch of the rollout's session.")
        self.session_attempt = self.gauge("session_attempt", "Attempt of the session in its epoch.")
        self.completions = self.counters(
            "completions",
            "Completions by outcome (counted, dropped, refused, given_up).",
            "outcome",
        )
        self.reconnects = self.counter(
            "stream_reconnects", "Streams that the rollout opened to the coordinator."
        )
        self.refused = self.counters(
            "refused", "Requests that the rollout refused, by reason.", "what"
        )
        self._window: deque[float] = deque(maxlen=REWARD_WINDOW)
        self._parts: dict[str, deque[float]] = {}  # as many as the job's reward has
        self.weight_version.set(-1)
        self.reward.set(math.nan)

    def sampled(self, *, rewards: Iterable[float], tokens: int) -> None:
        """Count finished samples and their tokens, and renew the mean of the last rewards."""
        new = list(rewards)
        self._window.extend(new)
        self.samples.inc(len(new))
        self.tokens.inc(tokens)
        if self._window:
            self.reward.set(math.fsum(self._window) / len(self._window))

    def scored(self, parts: Mapping[str, float]) -> None:
        """Record the numbers of the parts of a sample's reward, before their weights."""
        for part, number in parts.items():
            window = self._parts.setdefault(part, deque(maxlen=REWARD_WINDOW))
            window.append(number)
            self.reward_part(part=part).set(math.fsum(window) / len(window))


class TrainerMetrics(Metrics):
    """The metrics of a trainer pod, with those of the coordinator."""

    def __init__(self, *, namespace: str, job: str, group: str) -> None:
        super().__init__({"namespace": namespace, "job": job, "group": group})
        self.step = self.gauge("step", "Optimizer steps that are finished.")
        self.last_step = self.gauge(
            "last_step_timestamp_seconds",
            "Unix time of the end of the last step; before the first, of the trainer's start.",
        )
        self.weight_version = self.gauge(
            "weight_version", "Number of the newest published weight version; -1 before the first."
        )
        self.step_seconds = self.histogram(
            "step_seconds", "Seconds from the end of one step to the end of the next."
        )
        self.train_seconds = self.histogram("train_seconds", "Seconds of computation for one step.")
        self.wait_for_batch = self.histogram(
            "wait_for_batch_seconds", "Seconds that the trainer waited for a batch of samples."
        )
        self.wait_for_policy = self.histogram(
            "wait_for_policy_seconds",
            "Seconds that the trainer waited at a step's end for a version to be published.",
        )
        self.wait_for_reference = self.histogram(
            "wait_for_reference_seconds",
            "Seconds until the reference's own pods had answered for a batch.",
        )
        idle = self.gauge(
            "trainer_idle_ratio",
            "Share of the last step in which the trainer waited for samples or for a publication.",
        )
        speed = self.gauge(
            "tokens_per_second", "Tokens of responses trained on in the last step, per second."
        )
        self.sync_seconds = self.histogram(
            "param_sync_seconds",
            "Seconds from the start of a publication until all members served the version.",
        )
        self.snapshot_seconds = self.histogram(
            "param_sync_snapshot_seconds",
            "Seconds that it took to copy the weights for publication.",
        )
        self.stage_seconds = self.histogram(
            "param_sync_stage_seconds",
            "Seconds from the start of a publication to the last STAGE ack.",
        )
        self.commit_seconds = self.histogram(
            "param_sync_commit_seconds", "Seconds from COMMIT to its last ack."
        )
        self.sync_bytes = self.counter(
            "param_sync_bytes",
            "Bytes of weights that the rollouts received, summed over rollouts.",
        )
        self.deltas = self.counter("param_sync_deltas", "Versions that were sent as deltas.")
        self.prompts_in_flight = self.gauge(
            "prompts_in_flight", "Prompts that were dispatched and have no outcome yet."
        )
        self.buffer_depth = self.gauge(
            "buffer_depth", "Prompts whose samples wait to be trained on."
        )
        self.resumed_tokens = self.counter(
            "resumed_tokens", "Tokens of partial responses that another rollout continued."
        )
        self.staleness = self.histogram(
            "staleness_versions", "Age of a trained prompt in weight versions.", VERSIONS
        )
        self.off_policy_dropped = self.counter(
            "off_policy_dropped",
            "Prompts whose samples were dropped because they became older than maxStaleness.",
        )
        self.reward = self.gauge("reward", "Mean reward of the samples in the last batch.")
        self.skipped_steps = self.counter(
            "skipped_steps", "Steps that were skipped: their loss or gradient is not finite."
        )
        self.evaluation_reward = self.gauge(
            "evaluation_reward", "Mean reward of the rollouts' samples of held-out prompts."
        )
        loss = self.gauge("loss", "Loss of the trained model in the last step.")
        norm = self.gauge("grad_norm", "Norm of the gradient before clipping in the last step.")
        self._figures = {
            "actor/pg_loss": loss,
            "train/loss": loss,  # of supervised training
            "trainer/idle_ratio": idle,
            "perf/tokens_per_second": speed,
            "actor/grad_norm": norm,
            "train/grad_norm": norm,
            "actor/entropy": self.gauge(
                "entropy",
                "Mean entropy of the policy at a token, in nats; known if the loss has that term.",
            ),
            "actor/pg_clipfrac": self.gauge(
                "clip_fraction", "Share of the tokens at which the clip decides, in the last step."
            ),
            "actor/mismatch_kl": self.gauge(
                "mismatch_kl",
                "KL divergence (k3, in nats a token) between the rollouts' and the trainer's "
                "probabilities of tokens of the same weights.",
            ),
        }
        self.members = self.gauge("members", "Members in the session, including the trainer.")
        self.epoch = self.gauge("epoch", "Epoch of the session.")
        self.session_attempt = self.gauge("session_attempt", "Attempt of the session in its epoch.")
        self.checkpoint_failures = self.counter(
            "checkpoint_failures", "Checkpoints that could not be written."
        )
        self.rebuild_seconds = self.histograms(
            "rebuild_seconds",
            "Seconds from the cause of a session (such as a lost member) until it was usable.",
            "cause",
        )
        self.sessions_timed_out = self.counters(
            "sessions_timed_out",
            "Sessions that ended because a bound passed, by the bound's setting in the job's spec.",
            "bound",
        )
        self.detect_seconds = self.histograms(
            "detect_seconds",
            "Seconds from the last bytes of a member until it was suspected, by cause.",
            "cause",
        )
        self.refused = self.counters(
            "refused", "Requests that the coordinator refused, by reason.", "what"
        )
        self.reward_errors = self.counters(
            "reward_errors", "Samples for which the reward function gave no usable reward.", "kind"
        )
        self.weight_version.set(-1)
        self.last_step.set_to_current_time()
        for unknown in (
            self.reward,
            self.evaluation_reward,
            *self._figures.values(),
        ):
            unknown.set(math.nan)
        # Prometheus sees no increase of a counter whose first sample is above 0.
        for kind in RewardErrorKind:
            self.reward_errors(kind=kind.value)
        for cause in SessionCause:
            self.rebuild_seconds(cause=cause.value)
        for bound in TimeBound:
            self.sessions_timed_out(bound=bound.value)

    def record_figures(self, figures: Mapping[str, float]) -> None:
        """Show those of a step's figures that have a gauge."""
        for name, gauge in self._figures.items():
            if name in figures:
                gauge.set(figures[name])

    def watch_prompts(
        self, read: Callable[[], Mapping[str, int]], in_flight: Callable[[], float]
    ) -> None:
        """Serve the prompt ledger's totals as prompts_total{outcome}, and those without one yet."""
        self.totals(
            "prompts",
            "Prompts by outcome (dispatched, accepted, requeued, rejected, ...).",
            "outcome",
            read,
        )
        self.prompts_in_flight.set_function(in_flight)
