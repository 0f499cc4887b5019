"""Values by job, read from job statuses at scrape time, so that a dead job's series end with it."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector

from rollcall_operator.plan.status.sessions import session_key

Key = tuple[str, str]  # namespace, job

_GROUP = ("namespace", "job", "group")


@dataclass(slots=True)
class _Group:
    epoch: int = 0
    members: int = 0
    epochs: dict[str, int] = field(default_factory=dict)  # by cause
    sessions: dict[str, int] = field(default_factory=dict)  # by cause
    session_seconds: float = 0.0
    last_session: tuple[int, ...] = ()


class JobMetricsCollector(Collector):
    """Fed with each job's status after a reconcile; `forget` when the job is gone."""

    def __init__(self) -> None:
        self._groups: dict[Key, dict[str, _Group]] = {}
        self._phases: dict[Key, str] = {}

    def update(self, key: Key, status: Mapping[str, Any]) -> None:
        """Take what the job's status says. Counters count what changed since the last call."""
        groups = self._groups.setdefault(key, {})
        self._phases[key] = str(status.get("phase") or "")
        for group in status.get("syncGroups") or ():
            known = groups.get(group["name"])
            # A lower epoch is another job that took over the name.
            if known is None or known.epoch > int(group.get("epoch") or 0):
                known = groups[group["name"]] = _Group()
            first = not known.epoch
            _count_epochs(known, group, first=first)
            _count_sessions(known, group, first=first)
            known.members = int(group.get("members") or 0)

    def forget(self, key: Key) -> None:
        """The job is gone: its series end."""
        self._groups.pop(key, None)
        self._phases.pop(key, None)

    def collect(self) -> Iterable[Metric]:
        """Called by the registry at each scrape."""
        epoch = GaugeMetricFamily("rollcall_epoch", "Roster epoch.", labels=_GROUP)
        members = GaugeMetricFamily(
            "rollcall_members", "Members in the session, the trainer included.", labels=_GROUP
        )
        epochs = CounterMetricFamily(
            "rollcall_epochs", "Epochs opened by cause.", labels=(*_GROUP, "cause")
        )
        seconds = SummaryMetricFamily(
            "rollcall_rebuild_seconds",
            "From the cause of a session to the session being usable.",
            labels=_GROUP,
        )
        sessions = CounterMetricFamily(
            "rollcall_sessions", "Sessions formed by cause.", labels=(*_GROUP, "cause")
        )
        for labels, group in self._each():
            epoch.add_metric(labels, group.epoch)
            members.add_metric(labels, group.members)
            for cause, count in group.epochs.items():
                epochs.add_metric([*labels, cause], count)
            seconds.add_metric(
                labels,
                count_value=sum(group.sessions.values()),
                sum_value=group.session_seconds,
            )
            for cause, count in group.sessions.items():
                sessions.add_metric([*labels, cause], count)
        jobs = GaugeMetricFamily("rollcall_jobs", "RLJobs by phase.", labels=("phase",))
        for phase in sorted(set(self._phases.values())):
            jobs.add_metric([phase], sum(1 for p in self._phases.values() if p == phase))
        return (epoch, members, epochs, sessions, seconds, jobs)

    def _each(self) -> Iterator[tuple[list[str], _Group]]:
        for (namespace, job), groups in self._groups.items():
            for name, group in groups.items():
                yield [namespace, job, name], group


def _count_epochs(known: _Group, group: Mapping[str, Any], *, first: bool) -> None:
    """Count the epochs of the history that are newer than the last one seen."""
    for entry in group.get("history") or ():
        if first or int(entry["epoch"]) > known.epoch:
            cause = str(entry["cause"])
            known.epochs[cause] = known.epochs.get(cause, 0) + 1
    known.epoch = int(group.get("epoch") or 0)


def _count_sessions(known: _Group, group: Mapping[str, Any], *, first: bool) -> None:
    """Count the sessions that are newer than the last one seen; those there at first are old."""
    for record in group.get("sessions") or ():
        key = session_key(record)
        if key > known.last_session:
            known.last_session = key
            if not first:
                cause = str(record["cause"])
                known.sessions[cause] = known.sessions.get(cause, 0) + 1
                known.session_seconds += float(record["seconds"])
