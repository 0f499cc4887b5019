"""The status of a RolloutPool."""

from collections.abc import Iterable, Mapping, Sequence

from rollcall_operator.api.conditions import PoolCondition, Reason
from rollcall_operator.api.status import Condition, RolloutPoolStatus, VersionRange
from rollcall_operator.plan.children.rollout import selector
from rollcall_operator.plan.job_view import JobView, PoolView
from rollcall_operator.plan.model import NUMBERS_ONLY, Manifest
from rollcall_operator.plan.status.condition_state import (
    ConditionState,
    is_true,
    merge_conditions,
    notable_conditions,
)
from rollcall_operator.plan.status.conditions import pod_problem
from rollcall_operator.plan.status.refused_pods import creation_failures
from rollcall_operator.plan.status.write_throttle import (
    IMMEDIATELY,
    WHILE_STARTING,
    WITHIN_A_SECOND,
    StatusWrite,
    throttled,
)
from rollcall_operator.plan.timestamps import to_micro_time
from rollcall_protocol.wire.job_snapshot import MemberReport, MemberState

_WITH_JOB, _ALONE = 0.5, 1.5
"""Of the time between writes of numbers. A pool's go with its job's, whatever their phase was: each
write alone has the whole job planned."""


def pool_status(
    view: JobView,
    pool: PoolView,
    *,
    epoch: int,
    refusal: str,
    stale_since: str | None,
    with_job: bool,
) -> StatusWrite[RolloutPoolStatus]:
    """The new status of a pool, if it is to be written now.

    `epoch`: the job's, which is in the job's status before the pool's is written. `refusal`: why
    the API server refuses the pool's Deployment, empty if it does not. `stale_since`: see
    `CoordinatorContact`; None for a job that does not go on. `with_job`: the job's status is
    written now.
    """
    old, errors = pool.status, [*pool.errors, *([refusal] if refusal else [])]
    states = [
        ConditionState(
            PoolCondition.JOB_FOUND, True, Reason.JOB_FOUND, f"RLJob {view.name!r} exists"
        ),
        _validated(errors),
        _ready(pool, creation_failures(view.observed), _without_pods(view)),
    ]
    members = view.report.members
    reports = [members[pod.uid] for pod in pool.pods if pod.uid in members]
    new = RolloutPoolStatus(
        observed_generation=_generation(pool.raw),
        replicas=len(pool.pods),
        ready_replicas=pool.ready,
        in_sync=sum(view.report.holds_weights(pod) for pod in pool.pods),
        stale=sum(report.state is MemberState.STALE for report in reports),
        draining=pool.leaving + sum(r.state is MemberState.DRAINING for r in reports),
        epoch=epoch,
        weight_version=_versions(pool, reports, silent=view.report.snapshot is None),
        selector=_selector(view.name, pool.name),
        stale_since=stale_since,
        last_update=to_micro_time(view.now),
        conditions=_conditions(pool.raw, old, states, view.now),
    )
    numbers = view.observed.numbers_every * (_WITH_JOB if with_job else _ALONE)
    return throttled(old, new, interval=_interval(pool.raw, old, new, numbers), now=view.now)


def orphan_status(pool: Manifest, *, job: str, now: float) -> StatusWrite[RolloutPoolStatus]:
    """The status of a pool whose job does not exist."""
    old = RolloutPoolStatus.read(pool.get("status"))
    missing = f"RLJob {job!r} does not exist in this namespace"
    states = [
        ConditionState(
            PoolCondition.JOB_FOUND,
            False,
            Reason.JOB_NOT_FOUND,
            f"spec.jobRef.name: {missing}; create the RLJob, or delete this RolloutPool",
        ),
        ConditionState(PoolCondition.READY, False, Reason.JOB_NOT_FOUND, missing),
    ]
    new = RolloutPoolStatus(
        observed_generation=_generation(pool),
        selector=_selector(job, pool["metadata"]["name"]),
        last_update=to_micro_time(now),
        conditions=_conditions(pool, old, states, now),
    )
    return throttled(old, new, interval=_interval(pool, old, new, NUMBERS_ONLY), now=now)


def _generation(pool: Manifest) -> int:
    return int(pool["metadata"].get("generation", 0))


def _conditions(
    pool: Manifest, old: RolloutPoolStatus, states: Iterable[ConditionState], now: float
) -> tuple[Condition, ...]:
    return merge_conditions(old.conditions, states, generation=_generation(pool), now=now)


def _interval(
    raw: Mapping[str, object], old: RolloutPoolStatus, new: RolloutPoolStatus, numbers: float
) -> float:
    """Seconds that must have passed since the last write; see write_throttle.

    `numbers`: where only numbers change.
    """
    if not raw.get("status") or _must_be_current(old) != _must_be_current(new):
        return IMMEDIATELY
    before, after = (notable_conditions(s, problems_only=True) for s in (old, new))
    if before != after:
        return WITHIN_A_SECOND
    return numbers if old.epoch else max(WHILE_STARTING, numbers)


def _must_be_current(status: RolloutPoolStatus) -> tuple[object, ...]:
    return (
        status.observed_generation,
        status.stale_since,
        is_true(status.conditions, PoolCondition.JOB_FOUND),
        is_true(status.conditions, PoolCondition.VALIDATED),
        is_true(status.conditions, PoolCondition.READY),
    )


def _validated(errors: Sequence[str]) -> ConditionState:
    kind = PoolCondition.VALIDATED
    if errors:
        return ConditionState(kind, False, Reason.INVALID_SPEC, "\n".join(errors))
    return ConditionState(kind, True, Reason.VALID, "the spec is valid")


def _without_pods(view: JobView) -> tuple[Reason, str] | None:
    """Why the job's pools have no pods; None if they should have some."""
    if view.outcome is not None and view.no_pods_wanted:
        return Reason.FINISHED, f"RLJob {view.name!r} has finished, so the pool has no pods"
    if view.spec.suspend:
        return Reason.SUSPENDED, f"RLJob {view.name!r} is suspended, so the pool has no pods"
    return None


def _ready(
    pool: PoolView, failures: Mapping[str, str], without_pods: tuple[Reason, str] | None
) -> ConditionState:
    kind = PoolCondition.READY
    if without_pods is not None:
        return ConditionState(kind, False, *without_pods)
    child, template = f"Deployment/{pool.name}", pool.raw["spec"]["template"]
    found = pod_problem(pool.pods, template, failures, path="spec.template", child=child)
    if found:
        return ConditionState(kind, False, found.reason, found.message)
    ready = min(pool.ready, pool.wanted)  # the surplus of a scale-down is not counted
    text = f"{ready} of {pool.wanted} rollouts are ready"
    if ready >= pool.wanted:
        return ConditionState(kind, True, Reason.READY, text)
    return ConditionState(kind, False, Reason.STARTING, text)


def _versions(
    pool: PoolView, reports: Sequence[MemberReport], *, silent: bool
) -> VersionRange | None:
    """Versions that the coordinator reports; while it is silent, the last ones stay."""
    versions = [report.version for report in reports if report.version is not None]
    if versions:
        return VersionRange(min=min(versions), max=max(versions))
    return pool.status.weight_version if silent else None


def _selector(job: str, pool: str) -> str:
    return ",".join(f"{key}={value}" for key, value in selector(job, pool).items())
