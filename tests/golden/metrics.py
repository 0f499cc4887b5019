"""All metrics of operator and workers with type, labels and help."""

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric

from rollcall_operator.api.conditions import JobPhase, SyncGroupPhase
from rollcall_operator.api.status import (
    EpochRecord,
    PoolSummary,
    RLJobStatus,
    SessionRecord,
    SyncGroupStatus,
)
from rollcall_operator.telemetry.metrics import OperatorMetrics
from rollcall_plugins.front.openai.metrics import FrontMetrics
from rollcall_protocol.wire.job_snapshot import JobSnapshot, TrainingProgress
from rollcall_runtime.train.reference_pods.metrics import ReferenceMetrics
from rollcall_runtime.worker.telemetry import PREFIX, RolloutMetrics, TrainerMetrics

ROOT = Path(__file__).parents[2]
SOURCES = (ROOT / "operator" / "rollcall_operator", ROOT / "workloads")
_TIME = "2026-01-01T00:00:00Z"
_SNAPSHOT = JobSnapshot("uid", 1, 1, "", (), TrainingProgress(1, 10, 1, None))
_WRAPPERS = {"gauge", "counter", "counters", "histogram", "histograms", "totals"}
_FAMILIES = {"GaugeMetricFamily", "CounterMetricFamily", "SummaryMetricFamily"}
_CLASSES = {"Gauge", "Counter", "Histogram", "Summary"}


@dataclass(frozen=True, slots=True, order=True)
class MetricText:
    """What a metric's entry on /metrics says."""

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str


def by_process() -> dict[str, set[MetricText]]:
    """The metrics of each kind of process."""
    trainer = TrainerMetrics(namespace="n", job="j", group="g")
    rollout = RolloutMetrics(namespace="n", job="j", pool="p", group="g")
    return {
        "Operator": set(_of(_operator().registry)),
        "Trainer": {*_of(trainer.registry), *_totals(tuple(trainer.labels))},
        "Rollout": set(_of(rollout.registry)),
        "Front": set(_of(FrontMetrics(namespace="n", job="j").registry)),
        "Reference": set(_of(ReferenceMetrics(namespace="n", job="j").registry)),
    }


def render() -> str:
    """One section for each kind of process."""
    lines = []
    for title, metrics in by_process().items():
        lines += [f"# {title}", ""]
        for metric in sorted(metrics):
            lines += [f"{metric.name}{{{', '.join(metric.labels)}}} <{metric.kind}>"]
            lines += [f"    {metric.help}"]
        lines.append("")
    return "\n".join(lines)


def names_in_code() -> set[str]:
    """Names of all metrics that the source code defines, found without running it."""
    return {PREFIX + name.removeprefix(PREFIX) for name, _ in _definitions()}


def _definitions() -> Iterator[tuple[str, ast.Call]]:
    for folder in SOURCES:
        for path in folder.rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if not isinstance(node, ast.Call) or not node.args:
                    continue
                called = getattr(node.func, "attr", None) or getattr(node.func, "id", "")
                first = node.args[0]
                if called not in _WRAPPERS | _FAMILIES | _CLASSES:
                    continue
                if isinstance(first, ast.Constant) and isinstance(first.value, str):
                    yield first.value, node


def _totals(labels: tuple[str, ...]) -> Iterator[MetricText]:
    """Counters that the trainer reads from elsewhere: registered when it starts."""
    for name, call in _definitions():
        if getattr(call.func, "attr", "") == "totals":
            _, text, by = (ast.literal_eval(argument) for argument in call.args[:3])
            yield MetricText(f"{PREFIX}{name}_total", "counter", (*labels, by), text)


def _of(registry: CollectorRegistry) -> Iterator[MetricText]:
    named = registry._collector_to_names  # the only way to the labels of a metric without samples
    for collector in named:
        for family in collector.collect():
            if not family.name.startswith(PREFIX):
                continue
            name = f"{family.name}_total" if family.type == "counter" else family.name
            labels = getattr(collector, "_labelnames", None) or _labels(family)
            yield MetricText(name, family.type, tuple(labels), family.documentation)


def _labels(family: Metric) -> Iterable[str]:
    return tuple(family.samples[0].labels) if family.samples else ()


def _operator() -> OperatorMetrics:
    metrics = OperatorMetrics()

    def status(epoch: int) -> RLJobStatus:
        history = EpochRecord(epoch=epoch, cause="JobStarted", members=2, time=_TIME)
        session = SessionRecord(
            session=f"{epoch}.1.1", cause="NewRoster", members=2, seconds="1", time=_TIME
        )
        group = SyncGroupStatus(
            name="default",
            engine="gloo",
            epoch=epoch,
            phase=SyncGroupPhase.STABLE,
            history=(history,),
            sessions=(session,),
        )
        pools = (PoolSummary(name="p"),)
        return RLJobStatus(phase=JobPhase.RUNNING, sync_groups=(group,), pools=pools)

    for epoch in (1, 2):
        metrics.jobs.update(("n", "j"), status(epoch), snapshot=_SNAPSHOT)
    return metrics
