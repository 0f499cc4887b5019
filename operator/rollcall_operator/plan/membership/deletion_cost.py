"""Which rollouts go when a pool is scaled down: those whose end costs least."""

from collections.abc import Collection, Iterator
from enum import IntEnum

from rollcall_operator.api import labels
from rollcall_operator.plan.job_view import JobView, PoolView
from rollcall_operator.plan.model import DeletionCost, Manifest, PodFacts
from rollcall_protocol.wire.job_snapshot import MemberState


class Cost(IntEnum):
    """The annotation's number; pods without one have 0, so all of these go first."""

    DRAINING = -4
    BEHIND = -3
    IDLE = -2
    NEWEST = -1


def deletion_costs(view: JobView, applies: Collection[Manifest]) -> Iterator[DeletionCost]:
    """Marks for the pools whose Deployment is about to be lowered, and for no other.

    Only the to_delete get one, and one that is left from an earlier time is taken from those who
    stay; until then it harms nobody, as nothing else reads it. Where the user's template sets
    costs, they stand.
    """
    lowered = {
        body["metadata"]["name"]: body["spec"]["replicas"]
        for body in applies
        if body["kind"] == "Deployment"
    }
    live = {
        child["metadata"]["name"]: child["spec"].get("replicas", 1)
        for child in view.observed.children
        if child["kind"] == "Deployment"
    }
    for pool in view.pools:
        wanted, before = lowered.get(pool.name), live.get(pool.name)
        if wanted and before is not None and wanted < before and not _users_own(pool):
            yield from _marks(view, pool, wanted)


def _marks(view: JobView, pool: PoolView, wanted: int) -> Iterator[DeletionCost]:
    order = sorted(pool.pods, key=lambda pod: _order(view, pod))
    to_delete = order[: max(0, len(order) - wanted)]
    for pod in order:
        cost = str(int(_cost(view, pod))) if pod in to_delete else None
        if cost != pod.deletion_cost:
            yield DeletionCost(pod=pod.name, uid=pod.uid, cost=cost)


def _order(view: JobView, pod: PodFacts) -> tuple[object, ...]:
    """The ReplicaSet controller's own order, as far as it comes before costs, then ours."""
    unready = (bool(pod.node), pod.phase == "Running", pod.ready)
    return (*unready, _cost(view, pod), -pod.created, pod.name)


def _cost(view: JobView, pod: PodFacts) -> Cost:
    report = view.reports.get(pod.uid)
    if report is not None and report.state in {MemberState.DRAINING, MemberState.GONE}:
        return Cost.DRAINING
    if not view.holds_weights(pod):
        return Cost.BEHIND
    if report is not None and report.running == 0:
        return Cost.IDLE
    return Cost.NEWEST


def _users_own(pool: PoolView) -> bool:
    metadata = pool.raw["spec"]["template"].get("metadata") or {}
    return labels.DELETION_COST in (metadata.get("annotations") or {})
