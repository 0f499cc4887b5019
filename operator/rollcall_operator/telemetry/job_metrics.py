"""Metrics of each job, read from its status at scrape time: a deleted job's series end with it."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
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
from rollcall_protocol.wire.job_snapshot import JobSnapshot, MemberState, SessionCause
from rollcall_protocol.wire.roster import EpochCause

Key = tuple[str, str]  # namespace, job

_JOB = ("namespace", "job")
_GROUP = (*_JOB, "group")


@dataclass(slots=True)
class _GroupCounts:
    epoch: int = 0
    members: int = 0
    # By cause. Prometheus sees no increase of a counter whose first sample is above 0.
    epochs: dict[str, int] = field(default_factory=lambda: dict.fromkeys(EpochCause, 0))
    sessions: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SessionCause, 0))
    session_seconds: float = 0.0
    last_session: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class _JobFacts:
    """What is known of a job now. `acknowledged` is None until its coordinator has reported."""

    phase: str
    stale_since: float | None
    restarts: int
    acknowledged: int | None
    rollouts: Mapping[tuple[str, str], int]  # by pool and state


class JobMetricsCollector(Collector):
    """Fed with each job's status after a reconcile; `forget` when the job is gone."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        """`clock` gives Unix seconds."""
        self._clock = clock
        self._groups: dict[Key, dict[str, _GroupCounts]] = {}
        self._facts: dict[Key, _JobFacts] = {}

    def update(self, key: Key, status: RLJobStatus, *, snapshot: JobSnapshot | None = None) -> None:
        """Take over a job's status, and what the coordinator that it has now last reported.

        Counters count what is new since the last call.
        """
        groups = self._groups.setdefault(key, {})
        stale = status.stale_since
        self._facts[key] = _JobFacts(
            phase=status.phase or "",
            stale_since=None if stale is None else from_time(stale),
            restarts=status.trainer.total_restarts if status.trainer is not None else 0,
            acknowledged=snapshot.roster_epoch if snapshot is not None else None,
            rollouts=_rollouts(status, snapshot),
        )
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
        self._facts.pop(key, None)

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
        return (epoch, members, epochs, sessions, seconds, *self._collect_facts())

    def _collect_facts(self) -> Iterable[Metric]:
        silence = GaugeMetricFamily(
            "rollcall_job_coordinator_silent_seconds",
            "Seconds since the job's coordinator last sent anything; 0 while it reports.",
            labels=_JOB,
        )
        acknowledged = GaugeMetricFamily(
            "rollcall_job_acknowledged_epoch",
            "Epoch of the roster that the job's coordinator holds; absent before it has reported.",
            labels=_JOB,
        )
        restarts = CounterMetricFamily(
            "rollcall_job_trainer_restarts",
            "Restarts of the job's trainer since the job was created.",
            labels=_JOB,
        )
        rollouts = GaugeMetricFamily(
            "rollcall_job_rollouts",
            "Rollouts of a pool by state: Wanted, Ready, and as the coordinator reports them.",
            labels=(*_JOB, "pool", "state"),
        )
        phases = GaugeMetricFamily(
            "rollcall_job_phase", "1 for the phase that the job is in.", labels=(*_JOB, "phase")
        )
        jobs = GaugeMetricFamily("rollcall_jobs", "Number of RLJobs by phase.", labels=("phase",))
        for key, facts in self._facts.items():
            stale = facts.stale_since
            silence.add_metric(key, 0.0 if stale is None else max(0.0, self._clock() - stale))
            restarts.add_metric(key, facts.restarts)
            phases.add_metric([*key, facts.phase], 1)
            if facts.acknowledged is not None:
                acknowledged.add_metric(key, facts.acknowledged)
            for (pool, state), count in facts.rollouts.items():
                rollouts.add_metric([*key, pool, state], count)
        for phase, count in sorted(Counter(f.phase for f in self._facts.values()).items()):
            jobs.add_metric([phase], count)
        return (silence, acknowledged, restarts, rollouts, phases, jobs)

    def _each(self) -> Iterator[tuple[list[str], _GroupCounts]]:
        for (namespace, job), groups in self._groups.items():
            for name, counts in groups.items():
                yield [namespace, job, name], counts


def _rollouts(status: RLJobStatus, snapshot: JobSnapshot | None) -> Mapping[tuple[str, str], int]:
    """By pool and state. Every pool has every state: a series ends with its pool alone."""
    members = snapshot.members if snapshot is not None else ()
    reported = Counter((member.pool, member.state) for member in members)
    found: dict[tuple[str, str], int] = {}
    for pool in status.pools:
        found[pool.name, "Wanted"], found[pool.name, "Ready"] = pool.replicas, pool.ready
        for state in MemberState:
            found[pool.name, state.value] = reported[pool.name, state]
    return found


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
