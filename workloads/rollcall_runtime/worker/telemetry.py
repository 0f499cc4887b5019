"""What a worker says about itself: metrics, health, and logs of one JSON object a line.

Labels are the job's coordinates and small sets such as causes; never pod uids or prompts.
"""

import json
import logging
import math
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from aiohttp import web
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from rollcall_protocol.env import METRICS_PORT

PREFIX = "rollcall_"
STOP_SECONDS = 1.0
REWARD_WINDOW = 256  # samples that rollout_reward is the mean of
SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
VERSIONS = (0, 1, 2, 3, 4, 6, 8, 12, 16)

_STANDARD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}

log = logging.getLogger(__name__)


# --- logs --------------------------------------------------------------------------------------


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time (RFC 3339), level, message, `fields`, and a call's `extra`."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        super().__init__()
        self.fields = dict(fields)

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            "logger": record.name,
            **self.fields,
        }
        line |= {k: v for k, v in vars(record).items() if k not in _STANDARD_FIELDS}
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def configure_logs(*, level: int = logging.INFO, **fields: Any) -> JsonFormatter:
    """Send all logs to standard error; set the result's `fields` for what changes (the epoch)."""
    formatter = JsonFormatter(fields)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    logging.basicConfig(level=level, handlers=[handler], force=True)
    return formatter


# --- metrics -----------------------------------------------------------------------------------


class Metrics:
    """A process's own registry, in which every metric carries the same `labels`."""

    def __init__(self, labels: Mapping[str, str]) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.labels = dict(labels)

    def gauge(self, name: str, help_text: str) -> Gauge:
        """A gauge."""
        return Gauge(PREFIX + name, help_text, self.labels, registry=self.registry).labels(
            **self.labels
        )

    def counter(self, name: str, help_text: str) -> Counter:
        """A counter; `_total` is added to the name."""
        return self.counters(name, help_text)()

    def counters(self, name: str, help_text: str, *by: str) -> Callable[..., Counter]:
        """Counters told apart by further labels: `metric(cause="MemberLost").inc()`."""
        parent = Counter(PREFIX + name, help_text, (*self.labels, *by), registry=self.registry)
        return lambda **values: parent.labels(**self.labels, **values)

    def histogram(self, name: str, help_text: str, buckets: Iterable[float] = SECONDS) -> Histogram:
        """A histogram, of seconds unless told otherwise."""
        return Histogram(
            PREFIX + name, help_text, self.labels, registry=self.registry, buckets=tuple(buckets)
        ).labels(**self.labels)

    def histograms(self, name: str, help_text: str, *by: str) -> Callable[..., Histogram]:
        """Histograms of seconds told apart by further labels."""
        parent = Histogram(
            PREFIX + name, help_text, (*self.labels, *by), registry=self.registry, buckets=SECONDS
        )
        return lambda **values: parent.labels(**self.labels, **values)

    def totals(
        self, name: str, help_text: str, by: str, read: Callable[[], Mapping[str, int]]
    ) -> None:
        """Counters that somebody else keeps; `read` is called when they are asked for."""
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
    """What a rollout pod serves."""

    def __init__(self, *, namespace: str, job: str, pool: str, group: str) -> None:
        super().__init__({"namespace": namespace, "job": job, "pool": pool, "group": group})
        self.weight_version = self.gauge("weight_version", "Weight version that serves, -1: none")
        self.weight_lag = self.gauge("weight_lag", "Versions known to exist but not yet served")
        self.requests_running = self.gauge("requests_running", "Prompts being worked on")
        self.tokens = self.counter("tokens", "Tokens drawn")
        self.samples = self.counter("rollout_samples", "Samples drawn")
        self.reward = self.gauge("rollout_reward", f"Mean reward of the last {REWARD_WINDOW}")
        self.drain_seconds = self.gauge("drain_seconds", "How long the drain took, or takes")
        self.epoch = self.gauge("epoch", "Epoch of the session that this rollout holds")
        self.session_attempt = self.gauge("session_attempt", "Its attempt in that epoch")
        self.completions = self.counters("completions", "Fate of completions", "outcome")
        self.reconnects = self.counter("stream_reconnects", "Streams opened to the coordinator")
        self.refused = self.counters("refused", "Refused requests", "what")
        self._window: deque[float] = deque(maxlen=REWARD_WINDOW)
        self.weight_version.set(-1)
        self.reward.set(math.nan)

    def sampled(self, *, rewards: Iterable[float], tokens: int) -> None:
        """Record finished samples."""
        new = list(rewards)
        self._window.extend(new)
        self.samples.inc(len(new))
        self.tokens.inc(tokens)
        if self._window:
            self.reward.set(math.fsum(self._window) / len(self._window))


class TrainerMetrics(Metrics):
    """What a trainer pod serves; the coordinator's are here too."""

    def __init__(self, *, namespace: str, job: str, group: str) -> None:
        super().__init__({"namespace": namespace, "job": job, "group": group})
        self.step = self.gauge("step", "Optimizer steps done")
        self.weight_version = self.gauge("weight_version", "Newest published version, -1: none")
        self.step_seconds = self.histogram("step_seconds", "From one step's end to the next's")
        self.train_seconds = self.histogram("train_seconds", "Computing one step")
        self.wait_for_batch = self.histogram("wait_for_batch_seconds", "Trainer idle")
        self.wait_for_publish = self.histogram(
            "wait_for_publish_seconds", "Trainer held up because a buffer is still being sent"
        )
        self.snapshot_seconds = self.histogram("weight_sync_snapshot_seconds", "Copying weights")
        self.stage_seconds = self.histogram("weight_sync_stage_seconds", "To the last STAGE ack")
        self.commit_seconds = self.histogram("weight_sync_commit_seconds", "COMMIT to the last ack")
        self.sync_bytes = self.counter("weight_sync_bytes", "Bytes that rollouts staged")
        self.deltas = self.counter("weight_sync_deltas", "Versions of which changes were sent")
        self.buffer_depth = self.gauge("buffer_depth", "Prompts whose samples wait for a batch")
        self.resumed_tokens = self.counter(
            "resumed_tokens", "Tokens of partial responses that another rollout continued"
        )
        self.staleness = self.histogram("staleness", "Versions behind, by prompt", VERSIONS)
        self.reward = self.gauge("rollout_reward", "Mean reward of the last batch, by rollouts")
        self.members = self.gauge("members", "Members of the session, the trainer included")
        self.epoch = self.gauge("epoch", "Epoch of the session")
        self.session_attempt = self.gauge("session_attempt", "Its attempt in that epoch")
        self.checkpoint_failures = self.counter(
            "checkpoint_failures", "Checkpointer that could not be written"
        )
        self.rebuilds = self.counters("rebuilds", "Sessions formed", "cause")
        self.rebuild_seconds = self.histogram("rebuild_seconds", "From a cause to its session")
        self.detect_seconds = self.histograms(
            "detect_seconds", "From a member's last sign of life to the suspicion", "cause"
        )
        self.refused = self.counters("refused", "Refused pushes, streams, completions", "what")
        self.weight_version.set(-1)
        self.reward.set(math.nan)

    def watch_prompts(self, read: Callable[[], Mapping[str, int]]) -> None:
        """Serve the ledger's totals as prompts_total{outcome}."""
        self.totals("prompts", "Prompts by outcome", "outcome", read)


# --- the port that tells -----------------------------------------------------------------------

Check = Callable[[], str]
"""Empty when all is well, else what is wrong."""


class MetricsServer:
    """/metrics, /healthz and /readyz on a pod's address."""

    def __init__(self, metrics: Metrics, *, healthy: Check, ready: Check) -> None:
        self._metrics = metrics
        application = web.Application()
        application.router.add_get("/metrics", self._serve)
        application.router.add_get("/healthz", _answer(healthy))
        application.router.add_get("/readyz", _answer(ready))
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=STOP_SECONDS)

    async def start(self, address: str, port: int = METRICS_PORT) -> None:
        """Listen on `address`; OSError if the port is taken."""
        await self._runner.setup()
        await web.TCPSite(self._runner, address, port).start()

    async def stop(self) -> None:
        """Stop listening; harmless if it never began."""
        await self._runner.cleanup()

    async def _serve(self, _: web.Request) -> web.Response:
        body = generate_latest(self._metrics.registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})


def _answer(check: Check) -> Callable[[web.Request], Any]:
    async def answer(_: web.Request) -> web.Response:
        problem = check()
        return web.Response(text=problem or "ok", status=503 if problem else 200)

    return answer
