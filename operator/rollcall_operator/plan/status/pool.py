"""The status of a RolloutPool."""

from collections.abc import Mapping, Sequence
from typing import Any

from rollcall_operator.api.conditions import PoolCondition, Reason
from rollcall_operator.plan.children.rollout import selector
from rollcall_operator.plan.job_view import JobView, PoolView
from rollcall_operator.plan.model import Manifest
from rollcall_operator.plan.status import write_throttle
from rollcall_operator.plan.status.conditions import (
    ConditionState,
    merge,
    notable_conditions,
    pool_trouble,
)
from rollcall_operator.plan.timestamps import to_micro_time
from rollcall_protocol.wire.job_snapshot import MemberState


def pool_status(view: JobView, pool: PoolView, refusal: str) -> write_throttle.StatusWrite:
    """The new status of a pool, if it is to be written now.

    `refusal`: why the API server does not take the pool's Deployment, empty if it does.
    """
    old: Mapping[str, Any] = pool.raw.get("status") or {}
    errors = (*pool.errors, *((refusal,) if refusal else ()))
    findings = [
        ConditionState(PoolCondition.JOB_FOUND, True, Reason.JOB_FOUND, ""),
        _validated(errors),
        _ready(view, pool),
    ]
    new = _numbers(view, pool, old)
    generation = pool.raw["metadata"].get("generation", 0)
    new["observedGeneration"] = generation
    new["conditions"] = merge(
        old.get("conditions") or (), findings, generation=generation, now=view.now
    )
    return _write(old, new, view.now)


def orphan_status(pool: Manifest, *, job: str, now: float) -> write_throttle.StatusWrite:
    """The status of a pool whose job does not exist."""
    old: Mapping[str, Any] = pool.get("status") or {}
    path = f"spec.jobRef.name: no RLJob {job!r} in this namespace"
    missing = ConditionState(
        PoolCondition.JOB_FOUND,
        status=False,
        reason=Reason.JOB_NOT_FOUND,
        message=f"{path}; create the job, or delete this pool",
    )
    not_ready = ConditionState(
        PoolCondition.READY, False, Reason.JOB_NOT_FOUND, "waiting for the job"
    )
    generation = pool["metadata"].get("generation", 0)
    new: Manifest = {
        "observedGeneration": generation,
        "replicas": 0,
        "readyReplicas": 0,
        "inSync": 0,
        "stale": 0,
        "draining": 0,
        "epoch": 0,
        "selector": _selector(job, pool["metadata"]["name"]),
    }
    new["conditions"] = merge(
        old.get("conditions") or (), [missing, not_ready], generation=generation, now=now
    )
    return _write(old, new, now)


def _write(old: Mapping[str, Any], new: Manifest, now: float) -> write_throttle.StatusWrite:
    interval = write_throttle.SOON
    if not old or _must_know(old) != _must_know(new):
        interval = write_throttle.AT_ONCE
    elif notable_conditions(old, troubles_only=True) == notable_conditions(new, troubles_only=True):
        interval = write_throttle.LAZY if old.get("epoch") else write_throttle.STARTING
    return write_throttle.write(
        old, {**new, "lastUpdate": to_micro_time(now)}, interval=interval, now=now
    )


def _must_know(status: Mapping[str, Any]) -> tuple[Any, ...]:
    conditions = {c["type"]: c["status"] for c in status.get("conditions") or ()}
    return (
        status.get("observedGeneration"),
        conditions.get(PoolCondition.JOB_FOUND),
        conditions.get(PoolCondition.VALIDATED),
        conditions.get(PoolCondition.READY) == "True",
    )


def _validated(errors: Sequence[str]) -> ConditionState:
    if errors:
        text = "\n".join(errors)
        return ConditionState(PoolCondition.VALIDATED, False, Reason.INVALID_SPEC, text)
    return ConditionState(PoolCondition.VALIDATED, True, Reason.VALID, "")


def _ready(view: JobView, pool: PoolView) -> ConditionState:
    kind = PoolCondition.READY
    if view.outcome is not None and view.no_pods_wanted:
        return ConditionState(kind, False, Reason.FINISHED, "the job has finished")
    if view.spec.suspend:
        return ConditionState(kind, False, Reason.SUSPENDED, "the job is suspended")
    trouble = pool_trouble(pool.pods, pool.raw)
    if trouble:
        return ConditionState(kind, False, trouble[0], trouble[1])
    text = f"{pool.ready} of {pool.wanted} rollouts are ready"
    if pool.ready >= pool.wanted:
        return ConditionState(kind, True, Reason.READY, text)
    return ConditionState(kind, False, Reason.STARTING, text)


def _numbers(view: JobView, pool: PoolView, old: Mapping[str, Any]) -> Manifest:
    reports = [view.reports[pod.uid] for pod in pool.pods if pod.uid in view.reports]
    stale = sum(report.state is MemberState.STALE for report in reports)
    draining = sum(report.state is MemberState.DRAINING for report in reports)
    new: Manifest = {
        "replicas": len(pool.pods),
        "readyReplicas": pool.ready,
        "inSync": sum(view.holds_weights(pod) for pod in pool.pods),
        "stale": stale,
        "draining": draining + pool.leaving,
        "epoch": view.group["epoch"] if view.group else 0,
        "selector": _selector(view.name, pool.name),
    }
    versions = [report.version for report in reports if report.version is not None]
    if versions:
        new["weightVersion"] = {"min": min(versions), "max": max(versions)}
    elif view.snapshot is None and "weightVersion" in old:
        new["weightVersion"] = old["weightVersion"]
    return new


def _selector(job: str, pool: str) -> str:
    return ",".join(f"{key}={value}" for key, value in selector(job, pool).items())
