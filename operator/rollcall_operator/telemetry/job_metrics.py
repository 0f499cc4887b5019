"""Metrics of each job, read from its status at scrape time: a deleted job's series end with it."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector

from rollcall_operator.api.status import RLJobStatus, SyncGroupStatus
from rollcall_operator.plan.model import JobKey
from rollcall_operator.plan.status.session_history import session_key
from rollcall_operator.plan.timestamps import from_time
from rollcall_protocol.wire.job_snapshot import JobSnapshot, MemberState, SessionCause
from rollcall_protocol.wire.roster import EpochCause

_JOB = ("namespace", "job")
_GROUP = (*_JOB, "group")

_Family = GaugeMetricFamily | CounterMetricFamily


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
        self._groups: dict[JobKey, dict[str, _GroupCounts]] = {}
        self._facts: dict[JobKey, _JobFacts] = {}

    def update(
        self, key: JobKey, status: RLJobStatus, *, snapshot: JobSnapshot | None = None
    ) -> None:
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

    def forget(self, key: JobKey) -> None:
        """The job is gone: its series end."""
        self._groups.pop(key, None)
        self._facts.pop(key, None)

    def collect(self) -> Iterator[Metric]:
        """Called by the registry at each scrape, perhaps in another thread than `update`.

        One family after the other: with thousands of jobs, the samples of all at once take more
        memory than the jobs.
        """
        yield from self._collect_groups()
        yield from self._collect_facts()

    def _collect_groups(self) -> Iterator[Metric]:
        yield _filled(
            GaugeMetricFamily("rollcall_job_epoch", "Epoch of the job's roster.", labels=_GROUP),
            ((labels, counts.epoch) for labels, counts in self._each()),
        )
        yield _filled(
            GaugeMetricFamily(
                "rollcall_job_members",
                "Members in the sync group's current session, including the trainer.",
                labels=_GROUP,
            ),
            ((labels, counts.members) for labels, counts in self._each()),
        )
        yield _filled(
            CounterMetricFamily(
                "rollcall_job_epochs",
                "Epochs that the operator opened, by cause.",
                labels=(*_GROUP, "cause"),
            ),
            (by for labels, counts in self._each() for by in _by_cause(labels, counts.epochs)),
        )
        yield _filled(
            CounterMetricFamily(
                "rollcall_job_sessions",
                "Sessions that the coordinator formed, by cause.",
                labels=(*_GROUP, "cause"),
            ),
            (by for labels, counts in self._each() for by in _by_cause(labels, counts.sessions)),
        )
        seconds = SummaryMetricFamily(
            "rollcall_job_session_seconds",
            "Seconds from the cause of a session (such as a lost member) until it was usable.",
            labels=_GROUP,
        )
        for labels, counts in self._each():
            formed = sum(list(counts.sessions.values()))
            seconds.add_metric(labels, count_value=formed, sum_value=counts.session_seconds)
        yield seconds

    def _collect_facts(self) -> Iterator[Metric]:
        facts = list(self._facts.items())
        phases = Counter(job.phase for _, job in facts)
        yield _filled(
            GaugeMetricFamily(
                "rollcall_job_coordinator_silent_seconds",
                "Seconds since the job's coordinator last sent anything; 0 while it reports.",
                labels=_JOB,
            ),
            ((key, self._silent_seconds(job.stale_since)) for key, job in facts),
        )
        yield _filled(
            GaugeMetricFamily(
                "rollcall_job_acknowledged_epoch",
                "Epoch of the roster that the job's coordinator holds; absent before it has "
                "reported.",
                labels=_JOB,
            ),
            ((key, job.acknowledged) for key, job in facts if job.acknowledged is not None),
        )
        yield _filled(
            CounterMetricFamily(
                "rollcall_job_trainer_restarts",
                "Restarts of the job's trainer since the job was created.",
                labels=_JOB,
            ),
            ((key, job.restarts) for key, job in facts),
        )
        yield _filled(
            GaugeMetricFamily(
                "rollcall_job_rollouts",
                "Rollouts of a pool by state: Wanted, Ready, and as the coordinator reports them.",
                labels=(*_JOB, "pool", "state"),
            ),
            (((*key, *of), count) for key, job in facts for of, count in job.rollouts.items()),
        )
        yield _filled(
            GaugeMetricFamily(
                "rollcall_job_phase",
                "1 for the phase that the job is in.",
                labels=(*_JOB, "phase"),
            ),
            (((*key, job.phase), 1) for key, job in facts),
        )
        yield _filled(
            GaugeMetricFamily("rollcall_jobs", "Number of RLJobs by phase.", labels=("phase",)),
            (((phase,), count) for phase, count in sorted(phases.items())),
        )

    def _silent_seconds(self, since: float | None) -> float:
        return 0.0 if since is None else max(0.0, self._clock() - since)

    def _each(self) -> Iterator[tuple[list[str], _GroupCounts]]:
        for (namespace, job), groups in list(self._groups.items()):
            for name, counts in list(groups.items()):
                yield [namespace, job, name], counts


def _filled(family: _Family, samples: Iterable[tuple[Sequence[str], float]]) -> Metric:
    for labels, value in samples:
        family.add_metric(labels, value)
    return family


def _by_cause(
    labels: Sequence[str], counts: Mapping[str, int]
) -> Iterator[tuple[Sequence[str], float]]:
    for cause, count in list(counts.items()):
        yield [*labels, cause], count


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
