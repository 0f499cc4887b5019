"""The planner: what to do for one job now, computed from what is observed and nothing else."""

from collections.abc import Iterator
from typing import Any

from rollcall_operator.api import labels
from rollcall_operator.api.rljob import RLJobSpec
from rollcall_operator.plan import diff, failure, job_view
from rollcall_operator.plan.children import rollout as rollout_children
from rollcall_operator.plan.children import trainer as trainer_children
from rollcall_operator.plan.job_view import JobView
from rollcall_operator.plan.membership.deletion_cost import deletion_costs
from rollcall_operator.plan.membership.readiness_gates import gates
from rollcall_operator.plan.membership.removals import Removals, removals
from rollcall_operator.plan.membership.roster import Decision, decide
from rollcall_operator.plan.model import (
    EventNote,
    JobPlan,
    Manifest,
    ObjectDeletion,
    ObservedJob,
    ReconcileMemory,
)
from rollcall_operator.plan.refusals import (
    explain,
    live_errors,
    made_by_other_job,
    refusal_errors,
    refused,
)
from rollcall_operator.plan.status.conditions import findings, validated
from rollcall_operator.plan.status.events import job_events, pool_events
from rollcall_operator.plan.status.job import invalid_status, job_status
from rollcall_operator.plan.status.pool import orphan_status, pool_status
from rollcall_operator.plan.status.write_throttle import StatusWrite
from rollcall_operator.plan.timestamps import from_time
from rollcall_operator.plan.validate import job_errors, parse

_GARBAGE_COLLECTION = 2.0
"""Seconds after which to see whether the children of an earlier job of the same name are gone."""


def make_plan(observed: ObservedJob) -> JobPlan:
    """What to do now. Pure: the same observation gives the same plan.

    Raises ValueError for a pool of another job: planning it here would fight over its pods.
    """
    for pool in observed.pools:
        if pool["spec"]["jobRef"]["name"] != observed.name:
            raise ValueError(f"RolloutPool {pool['metadata']['name']} serves another job")
    job = observed.job
    if job is None or "deletionTimestamp" in job["metadata"]:
        return _without_job(observed)
    spec, errors = parse(RLJobSpec, job["spec"], "spec")
    if spec is None:
        return _unreadable(observed, job, errors)
    view = _view(observed, job, spec)
    errors = (*job_errors(spec), *live_errors(view))
    decision = decide(view)
    children = [] if errors else list(_children(view))
    applies, stale = _to_apply(view, children)
    errors = (*errors, *refusal_errors(view, children))
    epoch = decision.roster.epoch if decision.roster else int((view.group or {}).get("epoch", 0))
    status = job_status(view, decision, findings(view, errors, epoch))
    pools = {
        pool.name: pool_status(view, pool, _pool_refusal(observed, pool.name, children))
        for pool in view.pools
        if pool.exists
    }
    ttl = _time_to_live(view)
    unborn = not observed.token_exists and not errors and view.outcome is None
    waits = [decision.wait, status.wait, *(written.wait for written in pools.values())]
    leaving = removals(view)
    waits += [_deadline(view), ttl, leaving.wait, _GARBAGE_COLLECTION if stale else None]
    return JobPlan(
        costs=tuple(deletion_costs(view, applies)),
        applies=applies,
        token=trainer_children.token(job) if unborn else None,
        deletes=_deletes(view, expired=ttl is not None and ttl <= 0),
        removals=leaving.pods,
        job_status=status.status,
        epoch_change=decision.opened,
        pool_statuses={name: w.status for name, w in pools.items() if w.status is not None},
        gates=gates(view),
        roster=decision.roster,
        events=(*_events(view, status, pools), *leaving.notes),
        requeue_after=min((wait for wait in waits if wait is not None), default=None),
        memory=_memory(observed, decision, leaving),
    )


def _view(observed: ObservedJob, job: Manifest, spec: RLJobSpec) -> JobView:
    status: dict[str, Any] = job.get("status") or {}
    trainers = job_view.trainer_pods(observed, job["metadata"]["uid"])
    coordinator = job_view.find_coordinator(observed.name, trainers)
    snapshot = job_view.trusted_snapshot(observed, coordinator)
    restarts = failure.TrainerRestarts.read(status.get("trainer") or {})
    outcome = failure.recorded_outcome(status)
    if outcome is None and not spec.suspend:
        restarts = failure.count_restarts(restarts, trainers, spec.failure_policy, observed.now)
        outcome = failure.assess(
            spec,
            trainers=trainers,
            snapshot=snapshot,
            restarts=restarts,
            running_for=_running_for(status, observed.now),
        )
    return JobView(
        observed=observed,
        job=job,
        spec=spec,
        status=status,
        restarts=restarts,
        outcome=outcome,
        trainers=trainers,
        coordinator=coordinator,
        snapshot=snapshot,
        pools=job_view.pools_of(observed, job, spec, outcome),
        reports={report.pod_uid: report for report in snapshot.members} if snapshot else {},
    )


def _running_for(status: dict[str, Any], now: float) -> float:
    began = status.get("startTime")
    return now - from_time(began) if began else 0.0


def _children(view: JobView) -> Iterator[Manifest]:
    """All that the job should have, but pools' Deployments only once the pool has a uid."""
    job, spec = view.job, view.spec
    live_pools = {raw["metadata"]["name"]: raw for raw in view.observed.pools}
    replicas = 0 if view.no_pods_wanted else spec.trainer.replicas
    yield trainer_children.service(job)
    yield trainer_children.stateful_set(job, spec, replicas=replicas)
    for rollout in spec.rollouts:
        name = labels.pool_name(view.name, rollout.name)
        yield rollout_children.pool(job, rollout, live_pools.get(name))
    for pool in view.pools:
        foreign = made_by_other_job(pool.raw, view.uid)
        if pool.exists and pool.spec is not None and not pool.errors and not foreign:
            yield rollout_children.deployment(job, spec, pool.raw, pool.spec, replicas=pool.wanted)


def _to_apply(view: JobView, children: list[Manifest]) -> tuple[tuple[Manifest, ...], bool]:
    """The children that differ from what is there, and whether any waits for an earlier job's
    leftovers to go. A refused child waits until it, or the API server's mind, has changed.
    """
    live = {diff.key(child): child for child in (*view.observed.children, *view.observed.pools)}
    applies, stale = [], False
    for child in children:
        there = live.get(diff.key(child))
        if there is None and view.outcome is not None:
            continue  # a finished job gets nothing new
        if there is not None and made_by_other_job(there, view.uid):
            stale = True
        elif refused(view.observed.refusals, child):
            continue
        elif there is None or diff.differs(child, there):
            applies.append(child)
    return tuple(applies), stale


def _pool_refusal(observed: ObservedJob, name: str, children: list[Manifest]) -> str:
    """Why the pool's Deployment is refused, with paths in the pool."""
    for child in children:
        if diff.key(child) == f"Deployment/{name}":
            message = refused(observed.refusals, child)
            return explain(child, message, "spec.template") if message else ""
    return ""


def _deletes(view: JobView, *, expired: bool) -> tuple[ObjectDeletion, ...]:
    """Pools whose entry was taken out of the job, and the job itself when its time is over."""
    if expired:
        return (ObjectDeletion(kind="RLJob", name=view.name, uid=view.uid),)
    kept = {labels.pool_name(view.name, rollout.name) for rollout in view.spec.rollouts}
    return tuple(
        ObjectDeletion(kind="RolloutPool", name=pool.name, uid=pool.raw["metadata"]["uid"])
        for pool in view.pools
        if pool.owned and pool.exists and pool.name not in kept
    )


def _deadline(view: JobView) -> float | None:
    limit = view.spec.active_deadline_seconds
    if limit is None or view.outcome is not None or view.spec.suspend:
        return None
    return max(0.0, limit - _running_for(dict(view.status), view.now))


def _time_to_live(view: JobView) -> float | None:
    """Seconds until a finished job is to be deleted, None if it stays or has not finished."""
    ttl, done = view.spec.ttl_seconds_after_finished, view.status.get("completionTime")
    if ttl is None or view.outcome is None:
        return None
    return float(ttl) if done is None else from_time(done) + ttl - view.now


def _events(
    view: JobView, status: StatusWrite, pools: dict[str, StatusWrite]
) -> tuple[EventNote, ...]:
    notes = list(job_events(view.job, status.status)) if status.status else []
    for pool in view.pools:
        written = pools[pool.name].status if pool.exists else None
        if written and not pool.owned:  # the job speaks for its own pools
            notes += pool_events(pool.raw, written)
    return tuple(notes)


def _memory(observed: ObservedJob, decision: Decision, leaving: Removals) -> ReconcileMemory:
    return ReconcileMemory(
        roster=decision.roster or observed.memory.roster,
        first_seen=decision.first_seen,
        absences=leaving.absences,
        told=leaving.told,
    )


def _unreadable(observed: ObservedJob, job: Manifest, errors: tuple[str, ...]) -> JobPlan:
    """The spec does not fit the types, so nothing but that can be reported; what runs, runs on."""
    status = invalid_status(job, validated(errors), now=observed.now)
    events = job_events(job, status.status) if status.status else ()
    return JobPlan(job_status=status.status, events=events, memory=observed.memory)


def _without_job(observed: ObservedJob) -> JobPlan:
    """Pools that wait for their job. What a job owned goes with it by itself."""
    orphans = [
        pool
        for pool in observed.pools
        if not made_by_other_job(pool, "") and "deletionTimestamp" not in pool["metadata"]
    ]
    names = {pool["metadata"]["name"] for pool in orphans}
    written = {
        pool["metadata"]["name"]: orphan_status(pool, job=observed.name, now=observed.now)
        for pool in orphans
    }
    idle = (
        rollout_children.held(child)
        for child in observed.children
        if child["kind"] == "Deployment" and child["metadata"]["name"] in names
    )
    events = [
        note
        for pool in orphans
        if (status := written[pool["metadata"]["name"]].status) is not None
        for note in pool_events(pool, status)
    ]
    waits = [w.wait for w in written.values() if w.wait is not None]
    return JobPlan(
        applies=tuple(child for child in idle if child is not None),
        pool_statuses={name: w.status for name, w in written.items() if w.status is not None},
        events=tuple(events),
        requeue_after=min(waits, default=None),
    )
