"""Rollouts that the operator replaces: those drained on request, and those absent for long.

A pod is absent while the coordinator reports it as Suspect or Gone, or does not know it at all.
"""

import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rollcall_operator.plan.job_view import JobView, PoolView
from rollcall_operator.plan.model import AbsentPods, PodFacts
from rollcall_protocol.wire.job_snapshot import UNTRUSTED, MemberState

GONE_SECONDS = 5.0
"""A rollout that left its session in order is replaced after this long. One whose container is
restarted by the kubelet looks the same for a moment."""
PODS_PER_REPLACEMENT = 10
"""At most max(1, replicas // 10) replacements of absent rollouts at a time in a pool."""
_RETRY_SECONDS = 5.0
_ABSENT = {MemberState.SUSPECT, MemberState.GONE}
_GATE_REASONS_OF_ABSENT = {"Suspect", "NotAMember"}


@dataclass(frozen=True, slots=True)
class ReplacementDecision:
    """`pods` to delete, each with the reason; `wait`: seconds until the next is due."""

    pods: tuple[tuple[PodFacts, str], ...] = ()
    absences: AbsentPods | None = None
    wait: float | None = None


def decide_replacements(view: JobView) -> ReplacementDecision:
    """Rollouts to replace now.

    Without the coordinator's report on the current epoch none is replaced, and absences go on.
    They begin again with a new incarnation of the coordinator, which the rollouts have yet to
    find. After a restart of the operator an absence began when the readiness gate was closed.
    """
    if view.outcome is not None or view.spec.suspend:
        return ReplacementDecision()
    if view.snapshot is None or not view.snapshot_is_current:
        return ReplacementDecision(absences=view.observed.memory.absences)
    coordinator = (view.snapshot.pod_uid, view.snapshot.boot)
    since = _absent_since(view, coordinator)
    chosen: list[tuple[PodFacts, str]] = []
    waits: list[float] = []
    for pool in view.pools:
        chosen += list(_drained(view, pool, since))
        waits += [w for pod in pool.pods if (w := _gone_in(view, pod, since)) is not None]
        absent, wait = _absent_too_long(view, pool, since)
        chosen += absent
        waits += [] if wait is None else [wait]
    return ReplacementDecision(
        tuple(chosen),
        AbsentPods(coordinator, since),
        min((wait for wait in waits if wait > 0), default=None),
    )


# --- drained on request -------------------------------------------------------------------------


def _drained(
    view: JobView, pool: PoolView, since: Mapping[str, float]
) -> Iterator[tuple[PodFacts, str]]:
    for pod in pool.pods:
        report = view.reports.get(pod.uid)
        if report is None:
            continue
        # A drain by a signal comes from the kubelet, which starts the container again.
        on_request = report.reason not in signal.Signals.__members__
        gone_in = _gone_in(view, pod, since)
        if (report.state is MemberState.DRAINING and on_request) or gone_in == 0.0:
            yield pod, f"it was drained ({report.reason or 'on request'})"


def _gone_in(view: JobView, pod: PodFacts, since: Mapping[str, float]) -> float | None:
    """Seconds until a rollout that left in order is replaced; None for any other."""
    report, began = view.reports.get(pod.uid), since.get(pod.uid)
    if report is None or report.state is not MemberState.GONE or began is None:
        return None
    return max(0.0, began + GONE_SECONDS - view.now)


# --- absent for long ----------------------------------------------------------------------------


def _absent_too_long(
    view: JobView, pool: PoolView, since: Mapping[str, float]
) -> tuple[list[tuple[PodFacts, str]], float | None]:
    """Pods absent for `replaceAfterSeconds`, as far as the cap allows, and seconds to the next.

    The cap guards against a mistake, such as a network cut between a coordinator and all its
    rollouts. It counts successors that are young or still to come, which the API server knows:
    so a restart of the operator does not begin a new count.
    """
    bound = float(view.spec.membership.replace_after_seconds)
    if bound == 0:
        return [], None
    absent = sorted(
        (pod for pod in pool.pods if pod.uid in since and not _is_gone(view, pod)),
        key=lambda pod: (since[pod.uid], pod.name),
    )
    left = {pod.uid: since[pod.uid] + bound - view.now for pod in absent}
    due = [pod for pod in absent if left[pod.uid] <= 0]
    cap = max(1, pool.wanted // PODS_PER_REPLACEMENT)
    chosen = due[: max(0, cap - _replacements_under_way(view, pool, bound))]
    later = [left[pod.uid] for pod in absent if left[pod.uid] > 0]
    if len(chosen) < len(due):
        later.append(_RETRY_SECONDS)
    return [(pod, _why(view, pod, bound)) for pod in chosen], min(later, default=None)


def _replacements_under_way(view: JobView, pool: PoolView, bound: float) -> int:
    young = sum(view.now - pod.created < bound for pod in pool.pods)
    leaving = sum(
        pod.pool == pool.name and pod.leaves_by is not None and pod.leaves_by > view.now
        for pod in view.observed.pods
    )
    return max(leaving, pool.wanted - len(pool.pods) + young)


def _why(view: JobView, pod: PodFacts, bound: float) -> str:
    report = view.reports.get(pod.uid)
    text = f"{report.state}: {report.why}" if report else "it never registered"
    excluded = report is not None and report.cause in UNTRUSTED
    done = "excluded" if excluded else "not reached"
    return (
        f"the coordinator has {done} it for more than {bound:.0f} s, "
        f"spec.membership.replaceAfterSeconds ({text})"
    )


def _is_gone(view: JobView, pod: PodFacts) -> bool:
    report = view.reports.get(pod.uid)
    return report is not None and report.state is MemberState.GONE


def _absent_since(view: JobView, coordinator: tuple[str, int]) -> dict[str, float]:
    before = view.observed.memory.absences
    kept = before.since if before is not None and before.coordinator == coordinator else {}
    found = {}
    for pool in view.pools:
        for pod in pool.pods:
            if not (pod.running and pod.up and pod.ip):
                continue  # it is starting, or the kubelet restarts it
            report = view.reports.get(pod.uid)
            if report is None or report.state in _ABSENT:
                first = _since_gate_closed(view, pod) if before is None else view.now
                found[pod.uid] = kept.get(pod.uid, first)
    return found


def _since_gate_closed(view: JobView, pod: PodFacts) -> float:
    """When the gate was closed for absence, but not before the coordinator started."""
    started = view.coordinator.started if view.coordinator else None
    closed = pod.gate is False and pod.gate_reason in _GATE_REASONS_OF_ABSENT
    if not closed or pod.gate_since is None or started is None:
        return view.now
    return min(view.now, max(pod.gate_since, started))
