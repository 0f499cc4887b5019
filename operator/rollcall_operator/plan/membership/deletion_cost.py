"""Which rollouts are deleted when a pool is scaled down: those that cost least to lose."""

from collections.abc import Collection, Iterable, Iterator
from enum import IntEnum

from rollcall_operator.api import labels
from rollcall_operator.plan.job_view import CoordinatorReport, PoolView
from rollcall_operator.plan.model import DeletionCost, Manifest, PodFacts
from rollcall_protocol.wire.job_snapshot import MemberState


class CostRank(IntEnum):
    """Value of the annotation. Pods without it count as 0, so all of these are deleted first."""

    DRAINING = -4
    BEHIND = -3
    IDLE = -2
    NEWEST = -1


def deletion_costs(
    pools: Iterable[PoolView],
    report: CoordinatorReport,
    *,
    live: Iterable[Manifest],
    applies: Iterable[Manifest],
) -> Iterator[DeletionCost]:
    """Annotations for the pods of pools whose Deployment is about to be scaled down.

    Only pods that are to be deleted get one, and a leftover one is removed from those that stay;
    a leftover elsewhere does no harm, as nothing else reads it. Costs that the user's template
    sets are left unchanged. `live` are the job's children as they are, `applies` those to apply.
    """
    lowered, replicas = _replicas(applies), _replicas(live)
    for pool in pools:
        wanted, before = lowered.get(pool.name), replicas.get(pool.name)
        if wanted and before is not None and wanted < before and not _set_by_template(pool):
            yield from _costs(pool.pods, report, wanted)


def _replicas(children: Iterable[Manifest]) -> dict[str, int]:
    """Of Deployments, by name."""
    return {
        child["metadata"]["name"]: child["spec"].get("replicas", 1)
        for child in children
        if child["kind"] == "Deployment"
    }


def _costs(
    pods: Collection[PodFacts], report: CoordinatorReport, wanted: int
) -> Iterator[DeletionCost]:
    order = sorted(pods, key=lambda pod: _deletion_order(pod, _rank(pod, report)))
    to_delete = order[: max(0, len(order) - wanted)]
    for pod in order:
        cost = str(int(_rank(pod, report))) if pod in to_delete else None
        if cost != pod.deletion_cost:
            yield DeletionCost(pod=pod.name, uid=pod.uid, cost=cost)


def _deletion_order(pod: PodFacts, rank: CostRank) -> tuple[object, ...]:
    """The ReplicaSet controller's own order as far as it comes before costs, then the rank."""
    unready = (bool(pod.node), pod.phase == "Running", pod.ready)
    return (*unready, rank, -pod.created, pod.name)


def _rank(pod: PodFacts, report: CoordinatorReport) -> CostRank:
    member = report.of(pod)
    if member is not None and member.state in {MemberState.DRAINING, MemberState.GONE}:
        return CostRank.DRAINING
    if not report.holds_weights(pod):
        return CostRank.BEHIND
    if member is not None and member.running == 0:
        return CostRank.IDLE
    return CostRank.NEWEST


def _set_by_template(pool: PoolView) -> bool:
    metadata = pool.raw["spec"]["template"].get("metadata") or {}
    return labels.DELETION_COST in (metadata.get("annotations") or {})
