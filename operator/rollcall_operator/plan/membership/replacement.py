"""Rollouts that the operator replaces: those drained on request, and those absent for long.

A pod is absent while the coordinator reports it as Suspect or Gone, or does not know it at all.
"""

import signal
from collections.abc import Iterable
from dataclasses import dataclass

from rollcall_operator.plan.job_view import JobView, PoolView
from rollcall_operator.plan.model import AbsentPods, PodFacts
from rollcall_protocol.wire.job_snapshot import UNTRUSTED, MemberReport, MemberState

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


@dataclass(frozen=True, slots=True)
class _Rollout:
    """A rollout, what the coordinator reports of it, and since when it is absent (Unix seconds)."""

    pod: PodFacts
    report: MemberReport | None
    since: float | None

    @property
    def is_gone(self) -> bool:
        """Whether it has left its session in order."""
        return self.report is not None and self.report.state is MemberState.GONE


def decide_replacements(view: JobView) -> ReplacementDecision:
    """Rollouts to replace now.

    Without the coordinator's report on the current epoch none is replaced, and absences go on.
    They begin again with a new incarnation of the coordinator, which the rollouts have yet to
    find. After a restart of the operator an absence began when the readiness gate was closed.
    """
    if view.stopped:
        return ReplacementDecision()
    report, snapshot, now = view.report, view.report.snapshot, view.now
    before = view.observed.memory.absences
    if snapshot is None or not report.is_of(view.group):
        return ReplacementDecision(absences=before)
    coordinator = (snapshot.pod_uid, snapshot.boot)
    kept = before.since if before is not None and before.coordinator == coordinator else {}
    started = view.coordinator.started if view.coordinator else None
    since = {}
    for pod in (pod for pool in view.pools for pod in pool.pods):
        if _is_absent(pod, report.of(pod)):
            first = _since_gate_closed(pod, started, now) if before is None else now
            since[pod.uid] = kept.get(pod.uid, first)
    bound = float(view.spec.membership.replace_after_seconds)
    chosen: list[tuple[PodFacts, str]] = []
    waits: list[float] = []
    for pool in view.pools:
        rollouts = [_Rollout(pod, report.of(pod), since.get(pod.uid)) for pod in pool.pods]
        chosen += [(r.pod, why) for r in rollouts if (why := _drained(r, now)) is not None]
        waits += [wait for r in rollouts if (wait := _gone_in(r, now)) is not None]
        under_way = _replacements_under_way(pool, view.observed.pods, bound=bound, now=now)
        cap = max(1, pool.wanted // PODS_PER_REPLACEMENT)
        absent, later = _absent_too_long(rollouts, most=cap - under_way, bound=bound, now=now)
        chosen += absent
        waits += later
    return ReplacementDecision(
        tuple(chosen),
        AbsentPods(coordinator, since),
        min((wait for wait in waits if wait > 0), default=None),
    )


def _is_absent(pod: PodFacts, report: MemberReport | None) -> bool:
    if not (pod.running and pod.up and pod.ip):
        return False  # it is starting, or the kubelet restarts it
    return report is None or report.state in _ABSENT


def _since_gate_closed(pod: PodFacts, started: float | None, now: float) -> float:
    """When the gate was closed for absence, but not before the coordinator `started`."""
    closed = pod.gate is False and pod.gate_reason in _GATE_REASONS_OF_ABSENT
    if not closed or pod.gate_since is None or started is None:
        return now
    return min(now, max(pod.gate_since, started))


# --- drained on request -------------------------------------------------------------------------


def _drained(rollout: _Rollout, now: float) -> str | None:
    """Why a rollout that was drained is replaced now; None if it is not."""
    report = rollout.report
    if report is None:
        return None
    # A drain by a signal comes from the kubelet, which starts the container again.
    on_request = report.reason not in signal.Signals.__members__
    drains = report.state is MemberState.DRAINING and on_request
    if drains or _gone_in(rollout, now) == 0.0:
        return f"it was drained ({report.reason or 'on request'})"
    return None


def _gone_in(rollout: _Rollout, now: float) -> float | None:
    """Seconds until a rollout that left in order is replaced; None for any other."""
    if not rollout.is_gone or rollout.since is None:
        return None
    return max(0.0, rollout.since + GONE_SECONDS - now)


# --- absent for long ----------------------------------------------------------------------------


def _absent_too_long(
    rollouts: Iterable[_Rollout], *, most: int, bound: float, now: float
) -> tuple[list[tuple[PodFacts, str]], list[float]]:
    """Of one pool at most `most` pods that are absent for `bound` seconds, and seconds to others.

    The cap guards against a mistake, such as a network cut between a coordinator and all its
    rollouts. It counts successors that are young or still to come, which the API server knows:
    so a restart of the operator does not begin a new count.
    """
    if bound == 0:
        return [], []
    left = sorted(
        (
            (r.since + bound - now, r.pod.name, r)
            for r in rollouts
            if r.since is not None and not r.is_gone
        ),
        key=lambda item: item[:2],
    )
    due = [rollout for seconds, _, rollout in left if seconds <= 0]
    chosen = due[: max(0, most)]
    later = [seconds for seconds, _, _ in left if seconds > 0]
    if len(chosen) < len(due):
        later.append(_RETRY_SECONDS)
    return [(rollout.pod, _why(rollout.report, bound)) for rollout in chosen], later


def _replacements_under_way(
    pool: PoolView, pods: Iterable[PodFacts], *, bound: float, now: float
) -> int:
    young = sum(now - pod.created < bound for pod in pool.pods)
    leaving = sum(
        pod.pool == pool.name and pod.leaves_by is not None and pod.leaves_by > now for pod in pods
    )
    return max(leaving, pool.wanted - len(pool.pods) + young)


def _why(report: MemberReport | None, bound: float) -> str:
    text = f"{report.state}: {report.why}" if report else "it never registered"
    excluded = report is not None and report.cause in UNTRUSTED
    done = "excluded" if excluded else "not reached"
    return (
        f"the coordinator has {done} it for more than {bound:.0f} s, "
        f"spec.membership.replaceAfterSeconds ({text})"
    )
