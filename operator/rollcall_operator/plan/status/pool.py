"""The status of a RolloutPool."""

from collections.abc import Mapping, Sequence
from typing import Any

from rollcall_operator.api.conditions import PoolCondition, Reason
from rollcall_operator.plan.children.rollout import selector
from rollcall_operator.plan.job_view import Pool, World
from rollcall_operator.plan.model import Manifest
from rollcall_operator.plan.status import write_throttle
from rollcall_operator.plan.status.conditions import Finding, merge, pool_trouble, said
from rollcall_operator.plan.timestamps import to_micro_time
from rollcall_protocol.wire.job_snapshot import MemberState


def pool_status(world: World, pool: Pool, refusal: str) -> write_throttle.Written:
    """The new status of a pool, if it is to be written now.

    `refusal`: why the API server does not take the pool's Deployment, empty if it does.
    """
    old: Mapping[str, Any] = pool.raw.get("status") or {}
    errors = (*pool.errors, *((refusal,) if refusal else ()))
    findings = [
        Finding(PoolCondition.JOB_FOUND, True, Reason.JOB_FOUND, ""),
        _validated(errors),
        _ready(world, pool),
    ]
    new = _numbers(world, pool, old)
    generation = pool.raw["metadata"].get("generation", 0)
    new["observedGeneration"] = generation
    new["conditions"] = merge(
        old.get("conditions") or (), findings, generation=generation, now=world.now
    )
    return _write(old, new, world.now)


def orphan_status(pool: Manifest, *, job: str, now: float) -> write_throttle.Written:
    """The status of a pool whose job does not exist."""
    old: Mapping[str, Any] = pool.get("status") or {}
    path = f"spec.jobRef.name: no RLJob {job!r} in this namespace"
    missing = Finding(
        PoolCondition.JOB_FOUND,
        status=False,
        reason=Reason.JOB_NOT_FOUND,
        message=f"{path}; create the job, or delete this pool",
    )
    not_ready = Finding(PoolCondition.READY, False, Reason.JOB_NOT_FOUND, "waiting for the job")
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


def _write(old: Mapping[str, Any], new: Manifest, now: float) -> write_throttle.Written:
    interval = write_throttle.SOON
    if not old or _must_know(old) != _must_know(new):
        interval = write_throttle.AT_ONCE
    elif said(old, troubles_only=True) == said(new, troubles_only=True):
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


def _validated(errors: Sequence[str]) -> Finding:
    if errors:
        text = "\n".join(errors)
        return Finding(PoolCondition.VALIDATED, False, Reason.INVALID_SPEC, text)
    return Finding(PoolCondition.VALIDATED, True, Reason.VALID, "")


def _ready(world: World, pool: Pool) -> Finding:
    kind = PoolCondition.READY
    if world.outcome is not None and world.freed:
        return Finding(kind, False, Reason.FINISHED, "the job has finished")
    if world.spec.suspend:
        return Finding(kind, False, Reason.SUSPENDED, "the job is suspended")
    trouble = pool_trouble(pool.pods, pool.raw)
    if trouble:
        return Finding(kind, False, trouble[0], trouble[1])
    text = f"{pool.ready} of {pool.wanted} rollouts are ready"
    if pool.ready >= pool.wanted:
        return Finding(kind, True, Reason.READY, text)
    return Finding(kind, False, Reason.STARTING, text)


def _numbers(world: World, pool: Pool, old: Mapping[str, Any]) -> Manifest:
    reports = [world.reports[pod.uid] for pod in pool.pods if pod.uid in world.reports]
    stale = sum(report.state is MemberState.STALE for report in reports)
    draining = sum(report.state is MemberState.DRAINING for report in reports)
    new: Manifest = {
        "replicas": len(pool.pods),
        "readyReplicas": pool.ready,
        "inSync": sum(world.holds_weights(pod) for pod in pool.pods),
        "stale": stale,
        "draining": draining + pool.leaving,
        "epoch": world.group["epoch"] if world.group else 0,
        "selector": _selector(world.name, pool.name),
    }
    versions = [report.version for report in reports if report.version is not None]
    if versions:
        new["weightVersion"] = {"min": min(versions), "max": max(versions)}
    elif world.snapshot is None and "weightVersion" in old:
        new["weightVersion"] = old["weightVersion"]
    return new


def _selector(job: str, pool: str) -> str:
    return ",".join(f"{key}={value}" for key, value in selector(job, pool).items())
