"""The planner: what to do for one job now, computed from what is observed and nothing else."""

from collections.abc import Iterable, Mapping

from rollcall_operator.api import labels
from rollcall_operator.api.rljob import RLJobSpec
from rollcall_operator.api.status import RLJobStatus, RolloutPoolStatus
from rollcall_operator.plan import failure, job_view
from rollcall_operator.plan.children import rollout as rollout_children
from rollcall_operator.plan.job_children import (
    ChildrenPlan,
    deletes,
    plan_children,
    pool_refusal,
)
from rollcall_operator.plan.job_view import CoordinatorReport, JobView, PoolView
from rollcall_operator.plan.membership.deletion_cost import deletion_costs
from rollcall_operator.plan.membership.readiness_gates import readiness_gate_patches
from rollcall_operator.plan.membership.removals import RemovalDecision, decide_removals
from rollcall_operator.plan.membership.roster import RosterDecision, decide_roster
from rollcall_operator.plan.model import (
    JobPlan,
    Manifest,
    ObservedJob,
    PlannedEvent,
    ReadinessGatePatch,
    ReconcileMemory,
)
from rollcall_operator.plan.refusals import (
    made_by_other_job,
)
from rollcall_operator.plan.status.conditions import job_conditions, validated
from rollcall_operator.plan.status.coordinator_contact import coordinator_contact
from rollcall_operator.plan.status.events import job_events, pool_events
from rollcall_operator.plan.status.failed_mounts import mount_wait
from rollcall_operator.plan.status.job import invalid_status, job_status
from rollcall_operator.plan.status.pool import orphan_status, pool_status
from rollcall_operator.plan.status.write_throttle import StatusWrite
from rollcall_operator.plan.timestamps import from_time
from rollcall_operator.plan.validate import parse

_GARBAGE_COLLECTION = 2.0
"""Seconds after which to look whether the children of an earlier job of the same name are gone."""

_MISSING_PODS = 10.0
"""Seconds after which to look why a StatefulSet creates no pods: only its events say so."""

PoolWrites = Mapping[str, StatusWrite[RolloutPoolStatus]]


def make_plan(observed: ObservedJob) -> JobPlan:
    """What to do now. Pure: the same observation gives the same plan.

    Raises ValueError for a pool of another job, since both plans would change its pods,
    and for a stored status that does not fit the CRD.
    """
    for pool in observed.pools:
        if pool["spec"]["jobRef"]["name"] != observed.name:
            raise ValueError(f"RolloutPool {pool['metadata']['name']} serves another job")
    job = observed.job
    if job is None or "deletionTimestamp" in job["metadata"]:
        return _plan_without_job(observed)
    status = RLJobStatus.read(job.get("status"))
    spec, errors = parse(RLJobSpec, job["spec"], "spec")
    if spec is None:
        return _plan_for_unreadable_spec(observed, job, status, errors)
    return _plan_for_job(_view(observed, job, spec, status))


def _plan_for_job(view: JobView) -> JobPlan:
    observed = view.observed
    decision = decide_roster(view)
    planned = plan_children(view)
    epoch = decision.roster.epoch if decision.roster else view.status.epoch
    contact = coordinator_contact(view)
    stale_since = None if view.stopped else contact.stale_since
    conditions = job_conditions(view, contact, planned.errors, epoch)
    status = job_status(view, decision, conditions, stale_since=stale_since)
    pools = {
        pool.name: pool_status(
            view,
            pool,
            epoch=epoch,
            refusal=pool_refusal(observed, pool.name, planned.wanted),
            stale_since=stale_since,
            with_job=status.status is not None,
        )
        for pool in view.pools
        if pool.exists
    }
    removals = decide_removals(view)
    ttl = _time_to_live(view.spec, view.status, view.now) if view.outcome else None
    waits = [decision.wait, status.wait, *(write.wait for write in pools.values())]
    waits += [ttl, removals.wait, mount_wait(observed.pods, observed.now)]
    waits.append(_GARBAGE_COLLECTION if planned.leftovers else None)
    waits.append(None if view.stopped else _until_deadline(view.spec, view.status, view.now))
    waits.append(None if view.outcome else contact.wait)
    if not view.no_pods_wanted and _stateful_sets_lack_pods(view):
        waits.append(_MISSING_PODS)
    return JobPlan(
        costs=tuple(
            deletion_costs(view.pools, view.report, live=observed.children, applies=planned.applies)
        ),
        applies=planned.applies,
        deletes=deletes(view, expired=ttl is not None and ttl <= 0),
        pod_deletions=removals.pods,
        job_status=status.status.dump() if status.status else None,
        epoch_change=decision.opened,
        pool_statuses=_dumped(pools),
        gates=_gates(view),
        roster=decision.roster,
        events=(*_events(view.job, view.status, status, view.pools, pools), *removals.events),
        requeue_after=min((wait for wait in waits if wait is not None), default=None),
        memory=_memory(observed, decision, removals, planned),
    )


def _gates(view: JobView) -> tuple[ReadinessGatePatch, ...]:
    """None without the coordinator's report on the current epoch; those of a finished job stay."""
    if view.stopped or not view.report.is_of(view.group):
        return ()
    return readiness_gate_patches((p for pool in view.pools for p in pool.pods), view.report)


def _view(observed: ObservedJob, job: Manifest, spec: RLJobSpec, status: RLJobStatus) -> JobView:
    trainers = job_view.trainer_pods(observed)
    coordinator = job_view.find_coordinator(observed)
    snapshot = job_view.trusted_snapshot(observed, coordinator)
    restarts = failure.TrainerRestarts.read(status.trainer)
    outcome = failure.recorded_outcome(status)
    if outcome is None and not spec.suspend:
        step = status.progress.step if status.progress else 0
        restarts = failure.count_restarts(
            restarts, trainers, spec.failure_policy, observed.now, step
        )
        outcome = failure.decide_outcome(
            spec,
            trainers=trainers,
            rollouts=job_view.rollout_pods(observed),
            snapshot=snapshot,
            restarts=restarts,
            running_for=_running_for(status, observed.now),
            step=step,
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
        report=CoordinatorReport(
            snapshot,
            spec.weight_sync.enabled,
            {report.pod_uid: report for report in snapshot.members} if snapshot else {},
        ),
        pools=job_view.pools_of(observed, job, spec, outcome),
    )


def _running_for(status: RLJobStatus, now: float) -> float:
    return now - from_time(status.start_time) if status.start_time else 0.0


def _stateful_sets_lack_pods(view: JobView) -> bool:
    wanted = {labels.TRAINER: view.spec.trainer.replicas}
    if view.spec.front is not None:
        wanted[labels.FRONT] = view.spec.front.replicas
    return any(
        sum(1 for _ in job_view.pods_of_role(view.observed, role)) < replicas
        for role, replicas in wanted.items()
    )


def _until_deadline(spec: RLJobSpec, status: RLJobStatus, now: float) -> float | None:
    """Seconds until a job that goes on has taken too long; None without a limit."""
    limit = spec.active_deadline_seconds
    return None if limit is None else max(0.0, limit - _running_for(status, now))


def _time_to_live(spec: RLJobSpec, status: RLJobStatus, now: float) -> float | None:
    """Seconds until a finished job is deleted; None if it stays."""
    ttl, completed = spec.ttl_seconds_after_finished, status.completion_time
    if ttl is None:
        return None
    return float(ttl) if completed is None else from_time(completed) + ttl - now


def _events(
    job: Manifest,
    before: RLJobStatus,
    write: StatusWrite[RLJobStatus],
    pools: Iterable[PoolView],
    pool_writes: PoolWrites,
) -> tuple[PlannedEvent, ...]:
    events = list(job_events(job, before, write.status)) if write.status else []
    for pool in pools:
        new = pool_writes[pool.name].status if pool.exists else None
        if new and not pool.owned:  # the job's events cover its own pools
            events += pool_events(pool.raw, pool.status, new)
    return tuple(events)


def _memory(
    observed: ObservedJob,
    decision: RosterDecision,
    removals: RemovalDecision,
    planned: ChildrenPlan,
) -> ReconcileMemory:
    return ReconcileMemory(
        roster=decision.roster or observed.memory.roster,
        first_seen=decision.first_seen,
        absences=removals.absences,
        warned_trainers=removals.warned_trainers,
        settled=planned.inputs,
    )


def _dumped(pools: PoolWrites) -> dict[str, Manifest]:
    return {name: write.status.dump() for name, write in pools.items() if write.status is not None}


def _plan_for_unreadable_spec(
    observed: ObservedJob, job: Manifest, old: RLJobStatus, errors: tuple[str, ...]
) -> JobPlan:
    """The spec does not fit its types: only a condition reports it, and running pods stay."""
    new = invalid_status(job, old, validated(errors), now=observed.now).status
    return JobPlan(
        job_status=new.dump() if new else None,
        events=job_events(job, old, new) if new else (),
        memory=observed.memory,
    )


def _plan_without_job(observed: ObservedJob) -> JobPlan:
    """Pools without a job get no pods. What a job owned is garbage-collected."""
    orphans = {
        pool["metadata"]["name"]: pool
        for pool in observed.pools
        if not made_by_other_job(pool, "") and "deletionTimestamp" not in pool["metadata"]
    }
    writes = {
        name: orphan_status(pool, job=observed.name, now=observed.now)
        for name, pool in orphans.items()
    }
    scaled_down = (
        rollout_children.scaled_to_zero(child)
        for child in observed.children
        if child["kind"] == "Deployment" and child["metadata"]["name"] in orphans
    )
    events = [
        event
        for name, pool in orphans.items()
        if (new := writes[name].status) is not None
        for event in pool_events(pool, RolloutPoolStatus.read(pool.get("status")), new)
    ]
    waits = [write.wait for write in writes.values() if write.wait is not None]
    return JobPlan(
        applies=tuple(child for child in scaled_down if child is not None),
        pool_statuses=_dumped(writes),
        events=tuple(events),
        requeue_after=min(waits, default=None),
    )
