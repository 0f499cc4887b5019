"""Rollouts that are replaced though nobody deleted them: asked to drain, or missed for long."""

import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rollcall_operator.plan.job_view import JobView, PoolView
from rollcall_operator.plan.model import AbsentPods, PodFacts
from rollcall_protocol.wire.job_snapshot import MemberState

GONE_SECONDS = 5.0
"""A rollout that left its session in order is replaced after this long. One whose container is
restarted by the kubelet looks the same for a moment."""
SHARE = 10
"""Of a pool of so many rollouts one may be replaced for being missed, for every so many more."""
_RETRY_SECONDS = 5.0
_MISSED = {MemberState.SUSPECT, MemberState.GONE}
_WRITTEN_OFF = {"Suspect", "NotAMember"}
"""Reasons of a closed gate that tell of a missed rollout."""


@dataclass(frozen=True, slots=True)
class Replaced:
    """`pods` to delete, each with a sentence that says why; `wait` until the next is due."""

    pods: tuple[tuple[PodFacts, str], ...] = ()
    absences: AbsentPods | None = None
    wait: float | None = None


def replaced(view: JobView) -> Replaced:
    """Who is replaced now.

    Without news of the current epoch nobody is, and the clocks go on; they begin anew with another
    life of the coordinator, whom everybody has yet to find. After a restart of the operator the
    time of a closed gate counts.
    """
    snapshot, group = view.snapshot, view.group
    if view.outcome is not None or view.spec.suspend:
        return Replaced()
    if snapshot is None or group is None or snapshot.roster_epoch != group["epoch"]:
        return Replaced(absences=view.observed.memory.absences)
    since = _since(view, (snapshot.pod_uid, snapshot.boot))
    chosen: list[tuple[PodFacts, str]] = []
    waits: list[float] = []
    for pool in view.pools:
        drained = list(_drained(view, pool, since))
        chosen += drained
        waits += [w for pod in pool.pods if (w := _gone_in(view, pod, since)) is not None]
        missed, wait = _missed(view, pool, since)
        chosen += missed
        waits += [] if wait is None else [wait]
    return Replaced(
        tuple(chosen),
        AbsentPods((snapshot.pod_uid, snapshot.boot), since),
        min((wait for wait in waits if wait > 0), default=None),
    )


# --- drained by a call --------------------------------------------------------------------------


def _drained(
    view: JobView, pool: PoolView, since: Mapping[str, float]
) -> Iterator[tuple[PodFacts, str]]:
    for pod in pool.pods:
        report = view.reports.get(pod.uid)
        if report is None:
            continue
        # A drain by a signal is the kubelet's, which starts the container again.
        asked = report.reason not in signal.Signals.__members__
        gone_in = _gone_in(view, pod, since)
        if (report.state is MemberState.DRAINING and asked) or gone_in == 0.0:
            yield pod, f"it was drained: {report.reason or 'asked to'}"


def _gone_in(view: JobView, pod: PodFacts, since: Mapping[str, float]) -> float | None:
    report, missed = view.reports.get(pod.uid), since.get(pod.uid)
    if report is None or report.state is not MemberState.GONE or missed is None:
        return None
    return max(0.0, missed + GONE_SECONDS - view.now)


# --- missed -------------------------------------------------------------------------------------


def _missed(
    view: JobView, pool: PoolView, since: Mapping[str, float]
) -> tuple[list[tuple[PodFacts, str]], float | None]:
    """Those missed for longer than the bound, as far as the cap allows, and seconds to the next.

    The cap guards against a mistake, such as a network that is cut between a coordinator and all
    its rollouts. It counts successors that are young or still to come, which the API server knows
    as well as we do: a restart of the operator does not begin a new count.
    """
    bound = float(view.spec.membership.replace_after_seconds)
    if bound == 0:
        return [], None
    missed = sorted(
        (pod for pod in pool.pods if pod.uid in since and not _is_gone(view, pod)),
        key=lambda pod: (since[pod.uid], pod.name),
    )
    left = {pod.uid: since[pod.uid] + bound - view.now for pod in missed}
    due = [pod for pod in missed if left[pod.uid] <= 0]
    chosen = due[: max(0, _most(pool) - _under_way(view, pool, bound))]
    later = [left[pod.uid] for pod in missed if left[pod.uid] > 0]
    if len(chosen) < len(due):
        later.append(_RETRY_SECONDS)
    return [(pod, _why(view, pod, bound)) for pod in chosen], min(later, default=None)


def _most(pool: PoolView) -> int:
    return max(1, pool.wanted // SHARE)


def _under_way(view: JobView, pool: PoolView, bound: float) -> int:
    young = sum(view.now - pod.created < bound for pod in pool.pods)
    leaving = sum(
        pod.pool == pool.name and pod.leaves_by is not None and pod.leaves_by > view.now
        for pod in view.observed.pods
    )
    return max(leaving, pool.wanted - len(pool.pods) + young)


def _why(view: JobView, pod: PodFacts, bound: float) -> str:
    report = view.reports.get(pod.uid)
    text = f"{report.state}: {report.why}" if report else "it never registered"
    return f"missed for more than {bound:.0f} s ({text})"


def _is_gone(view: JobView, pod: PodFacts) -> bool:
    report = view.reports.get(pod.uid)
    return report is not None and report.state is MemberState.GONE


def _since(view: JobView, coordinator: tuple[str, int]) -> dict[str, float]:
    before = view.observed.memory.absences
    kept = before.since if before is not None and before.coordinator == coordinator else {}
    found = {}
    for pool in view.pools:
        for pod in pool.pods:
            if not (pod.running and pod.up and pod.ip):
                continue  # it is starting, or the kubelet is at it
            report = view.reports.get(pod.uid)
            if report is None or report.state in _MISSED:
                first = _by_gate(view, pod) if before is None else view.now
                found[pod.uid] = kept.get(pod.uid, first)
    return found


def _by_gate(view: JobView, pod: PodFacts) -> float:
    """When the gate was closed for this very reason, unless the coordinator began later."""
    started = view.coordinator.started if view.coordinator else None
    known = pod.gate is False and pod.gate_reason in _WRITTEN_OFF
    if not known or pod.gate_since is None or started is None:
        return view.now
    return min(view.now, max(pod.gate_since, started))
