"""Metrics of each job, read from its status at scrape time: a deleted job's series end with it."""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector

from rollcall_operator.api.status import RLJobStatus, SyncGroupStatus
from rollcall_operator.plan.status.session_history import session_key
from rollcall_operator.plan.timestamps import from_time

Key = tuple[str, str]  # namespace, job

_GROUP = ("namespace", "job", "group")


@dataclass(slots=True)
class _GroupCounts:
    epoch: int = 0
    members: int = 0
    epochs: dict[str, int] = field(default_factory=dict)  # by cause
    sessions: dict[str, int] = field(default_factory=dict)  # by cause
    session_seconds: float = 0.0
    last_session: tuple[int, ...] = ()


class JobMetricsCollector(Collector):
    """Fed with each job's status after a reconcile; `forget` when the job is gone."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        """`clock` gives Unix seconds."""
        self._clock = clock
        self._groups: dict[Key, dict[str, _GroupCounts]] = {}
        self._phases: dict[Key, str] = {}
        self._stale_since: dict[Key, float | None] = {}

    def update(self, key: Key, status: RLJobStatus) -> None:
        """Take over a job's status. Counters count what is new since the last call."""
        groups = self._groups.setdefault(key, {})
        self._phases[key] = status.phase or ""
        stale = status.stale_since
        self._stale_since[key] = None if stale is None else from_time(stale)
        for group in status.sync_groups:
            counts = groups.get(group.name)
            # A lower epoch belongs to another job that has the same name.
            if counts is None or counts.epoch > group.epoch:
                counts = groups[group.name] = _GroupCounts()
            first = not counts.epoch
            _count_epochs(counts, group, first=first)
            _count_sessions(counts, group, first=first)
            counts.members = group.members

    def forget(self, key: Key) -> None:
        """The job is gone: its series end."""
        self._groups.pop(key, None)
        self._phases.pop(key, None)
        self._stale_since.pop(key, None)

    def collect(self) -> Iterable[Metric]:
        """Called by the registry at each scrape."""
        epoch = GaugeMetricFamily("rollcall_job_epoch", "Epoch of the job's roster.", labels=_GROUP)
        members = GaugeMetricFamily(
            "rollcall_job_members",
            "Members in the sync group's current session, including the trainer.",
            labels=_GROUP,
        )
        epochs = CounterMetricFamily(
            "rollcall_job_epochs",
            "Epochs that the operator opened, by cause.",
            labels=(*_GROUP, "cause"),
        )
        seconds = SummaryMetricFamily(
            "rollcall_job_session_seconds",
            "Seconds from the cause of a session (such as a lost member) until it was usable.",
            labels=_GROUP,
        )
        sessions = CounterMetricFamily(
            "rollcall_job_sessions",
            "Sessions that the coordinator formed, by cause.",
            labels=(*_GROUP, "cause"),
        )
        for labels, counts in self._each():
            epoch.add_metric(labels, counts.epoch)
            members.add_metric(labels, counts.members)
            for cause, count in counts.epochs.items():
                epochs.add_metric([*labels, cause], count)
            seconds.add_metric(
                labels,
                count_value=sum(counts.sessions.values()),
                sum_value=counts.session_seconds,
            )
            for cause, count in counts.sessions.items():
                sessions.add_metric([*labels, cause], count)
        silence = GaugeMetricFamily(
            "rollcall_job_coordinator_silent_seconds",
            "Seconds since the job's coordinator last sent anything; 0 while it reports.",
            labels=("namespace", "job"),
        )
        for key, stale in self._stale_since.items():
            silence.add_metric(key, 0.0 if stale is None else max(0.0, self._clock() - stale))
        jobs = GaugeMetricFamily("rollcall_jobs", "Number of RLJobs by phase.", labels=("phase",))
        for phase in sorted(set(self._phases.values())):
            jobs.add_metric([phase], sum(1 for p in self._phases.values() if p == phase))
        return (epoch, members, epochs, sessions, seconds, silence, jobs)

    def _each(self) -> Iterator[tuple[list[str], _GroupCounts]]:
        for (namespace, job), groups in self._groups.items():
            for name, counts in groups.items():
                yield [namespace, job, name], counts


def _count_epochs(counts: _GroupCounts, group: SyncGroupStatus, *, first: bool) -> None:
    """Count the epochs of the history that are newer than the last one counted."""
    for record in group.history:
        if first or record.epoch > counts.epoch:
            counts.epochs[record.cause] = counts.epochs.get(record.cause, 0) + 1
    counts.epoch = group.epoch


def _count_sessions(counts: _GroupCounts, group: SyncGroupStatus, *, first: bool) -> None:
    """Count the sessions newer than the last one counted; those of the first status are old."""
    for record in group.sessions:
        key = session_key(record)
        if key > counts.last_session:
            counts.last_session = key
            if not first:
                counts.sessions[record.cause] = counts.sessions.get(record.cause, 0) + 1
                counts.session_seconds += float(record.seconds)
