"""The status of an RLJob."""

from collections.abc import Iterable, Sequence

from rollcall_operator.api.conditions import JobCondition, JobPhase, SyncGroupPhase
from rollcall_operator.api.labels import GROUP_DEFAULT
from rollcall_operator.api.rljob import WeightSyncSpec
from rollcall_operator.api.status import (
    HISTORY,
    LONGEST_MESSAGE,
    EpochRecord,
    LastSession,
    PoolSummary,
    ProgressStatus,
    RLJobStatus,
    SyncGroupStatus,
)
from rollcall_operator.plan.job_view import CoordinatorReport, JobView, PoolView
from rollcall_operator.plan.membership.roster import RosterDecision
from rollcall_operator.plan.model import Manifest
from rollcall_operator.plan.status.condition_state import (
    ConditionState,
    is_true,
    merge_conditions,
    notable_conditions,
    phase_of,
)
from rollcall_operator.plan.status.session_history import (
    append_sessions,
    unexpected_session_messages,
)
from rollcall_operator.plan.status.write_throttle import (
    IMMEDIATELY,
    WHILE_STARTING,
    WITHIN_A_SECOND,
    StatusWrite,
    throttled,
)
from rollcall_operator.plan.timestamps import to_micro_time, to_time
from rollcall_protocol.wire.job_snapshot import JobSnapshot, SessionReport
from rollcall_protocol.wire.printable_text import printable_lines
from rollcall_protocol.wire.roster import Roster


def job_status(
    view: JobView,
    decision: RosterDecision,
    states: Sequence[ConditionState],
    *,
    stale_since: str | None,
) -> StatusWrite[RLJobStatus]:
    """The new status, if it is to be written now.

    `stale_since`: see `CoordinatorContact`; None for a job that does not go on.
    """
    old, spec, now = view.status, view.spec, view.now
    kept = old if spec.reference.template is not None else _without_reference(old)
    new = _with_conditions(view.job, kept, states, now=now)
    finished = view.outcome is not None
    if new.phase != JobPhase.PENDING or old.trainer is not None:
        groups = _sync_groups(old, spec.weight_sync, decision, now)
        if not finished:
            runs = view.coordinator is not None and view.coordinator.running
            before = old.sync_groups if runs else None
            groups = tuple(_with_session(group, view.report, before, now) for group in groups)
        # Time suspended does not count: a resumed job starts again.
        resumed = None if spec.suspend else old.start_time or to_time(now)
        new = new.model_copy(
            update={
                "start_time": old.start_time if finished else resumed,
                "completion_time": (old.completion_time or to_time(now)) if finished else None,
                "progress": _progress(old.progress, view.report.snapshot, spec.max_steps, now),
                "trainer": view.restarts.as_status(
                    replicas=0 if view.no_pods_wanted else spec.trainer.replicas,
                    ready=sum(pod.ready for pod in view.trainers),
                ),
                "pools": _pools(view.pools, view.report),
                "rollouts": _ready_of_wanted(view.pools),
                "sync_groups": groups,
                "epoch": groups[0].epoch if groups else 0,
                "stale_since": stale_since,
            }
        )
    interval = _interval(old, new, numbers=view.observed.numbers_every)
    return throttled(old, new, interval=interval, now=now)


def more_than_progress(before: Manifest, now: Manifest) -> bool:
    """Whether two statuses of a job differ in more than steps and versions."""
    return {**before, "progress": None} != {**now, "progress": None}


def _without_reference(status: RLJobStatus) -> RLJobStatus:
    """The status without the condition of pods that the spec does not ask for any more."""
    kept = (c for c in status.conditions if c.type != JobCondition.REFERENCE_READY)
    return status.model_copy(update={"conditions": tuple(kept)})


def invalid_status(
    job: Manifest, old: RLJobStatus, state: ConditionState, *, now: float
) -> StatusWrite[RLJobStatus]:
    """The status of a job whose spec cannot be read: only its condition Validated changes."""
    new = _with_conditions(job, old, [state], now=now)
    new = new.model_copy(update={"phase": old.phase or JobPhase.PENDING})
    return throttled(old, new, interval=IMMEDIATELY, now=now)


def _with_conditions(
    job: Manifest, old: RLJobStatus, states: Iterable[ConditionState], *, now: float
) -> RLJobStatus:
    generation = job["metadata"].get("generation", 0)
    conditions = merge_conditions(old.conditions, states, generation=generation, now=now)
    return old.model_copy(
        update={
            "observed_generation": generation,
            "conditions": conditions,
            "phase": phase_of(conditions),
        }
    )


def _interval(old: RLJobStatus, new: RLJobStatus, *, numbers: float) -> float:
    """Seconds that must have passed since the last write; see write_throttle.

    `numbers`: where only numbers change.
    """
    if _must_be_current(old) != _must_be_current(new):
        return IMMEDIATELY
    if next(unexpected_session_messages(old, new), None) is not None:
        return WITHIN_A_SECOND
    starting = new.phase == JobPhase.STARTING
    before, after = (notable_conditions(s, problems_only=starting) for s in (old, new))
    if before != after:
        return WITHIN_A_SECOND
    return max(WHILE_STARTING, numbers) if starting else numbers


def _must_be_current(status: RLJobStatus) -> tuple[object, ...]:
    return (
        status.observed_generation,
        status.phase,
        status.epoch,
        status.completion_time,
        status.stale_since,
        is_true(status.conditions, JobCondition.VALIDATED),
    )


def _progress(
    old: ProgressStatus | None, snapshot: JobSnapshot | None, max_steps: int, now: float
) -> ProgressStatus:
    """What the coordinator reports; without a report the last one stays."""
    stamp = to_micro_time(now)
    if snapshot is None:
        if old is not None:
            return old.model_copy(update={"last_update": stamp})
        return ProgressStatus(max_steps=max_steps, last_update=stamp)
    reported = snapshot.progress
    reward = None if reported.rollout_reward is None else f"{reported.rollout_reward:.3f}"
    if reward is None and old is not None:
        reward = old.rollout_reward
    return ProgressStatus(
        step=reported.step,
        max_steps=reported.max_steps,
        weight_version=reported.weight_version,
        rollout_reward=reward,
        steps_alike=reported.steps_alike,
        paused=printable_lines(reported.paused)[:LONGEST_MESSAGE] or None,
        warning=printable_lines(reported.warning)[:LONGEST_MESSAGE] or None,
        last_update=stamp,
    )


def _pools(pools: Iterable[PoolView], report: CoordinatorReport) -> tuple[PoolSummary, ...]:
    return tuple(
        PoolSummary(
            name=pool.name,
            replicas=pool.wanted,
            ready=pool.ready,
            in_sync=sum(report.holds_weights(pod) for pod in pool.pods),
        )
        for pool in pools
    )


def _ready_of_wanted(pools: Sequence[PoolView]) -> str:
    ready = sum(pool.ready for pool in pools)
    wanted = sum(pool.wanted for pool in pools)
    return f"{ready}/{wanted}"


# --- sync groups --------------------------------------------------------------------------------


def _sync_groups(
    old: RLJobStatus, sync: WeightSyncSpec, decision: RosterDecision, now: float
) -> tuple[SyncGroupStatus, ...]:
    """The default group first; the others share its roster and have sessions of their own."""
    default = old.default_group
    if decision.opened and decision.roster:
        default = _with_epoch(default, decision.roster, decision.message, sync.engine, now)
    if default is None:
        return ()
    groups = [default]
    for spec in sync.groups:
        group = old.group(spec.name) or SyncGroupStatus(
            name=spec.name, engine=spec.engine, epoch=0, phase=SyncGroupPhase.FORMING
        )
        update = {"engine": spec.engine, "epoch": default.epoch}
        groups.append(group.model_copy(update=update))
    return tuple(groups)


def _with_epoch(
    old: SyncGroupStatus | None, roster: Roster, message: str, engine: str, now: float
) -> SyncGroupStatus:
    """The default group with a newly opened epoch."""
    record = EpochRecord(
        epoch=roster.epoch,
        cause=roster.cause.value,
        message=message[:LONGEST_MESSAGE],
        members=len(roster.members) + 1,
        time=to_micro_time(now),
    )
    if old is None:
        old = SyncGroupStatus(
            name=GROUP_DEFAULT, engine="", epoch=roster.epoch, phase=SyncGroupPhase.FORMING
        )
    return old.model_copy(
        update={
            "engine": engine,
            "epoch": roster.epoch,
            "roster_digest": roster.digest,
            "coordinator": roster.coordinator_uid,
            "history": (*old.history, record)[-HISTORY:],
        }
    )


def _with_session(
    group: SyncGroupStatus,
    coordinator: CoordinatorReport,
    before: Sequence[SyncGroupStatus] | None,
    now: float,
) -> SyncGroupStatus:
    """The group with its phase and session. Without a report from a coordinator that runs, both
    stay as they were. `before`: the groups in status; None where the coordinator does not run.
    """
    forming = SyncGroupPhase.REBUILDING if group.last_rebuild else SyncGroupPhase.FORMING
    report = coordinator.snapshot.group(group.name) if coordinator.snapshot else None
    if report is None:
        return group.model_copy(
            update={
                "phase": group.phase if before is not None and group in before else forming,
                "members": 0 if before is None else group.members,
            }
        )
    session = report.session
    if session is None:
        update = {"rebuilds": report.rebuilds, "phase": forming, "members": 0}
        return group.model_copy(update=update)
    formed = coordinator.group_is_formed(group.name, epoch=group.epoch)
    return group.model_copy(
        update={
            "rebuilds": report.rebuilds,
            "phase": SyncGroupPhase.STABLE if formed else forming,
            "members": session.members,
            "last_rebuild": _last_session(group, session, now),
            "sessions": append_sessions(group.sessions, report.sessions),
        }
    )


def _last_session(group: SyncGroupStatus, session: SessionReport, now: float) -> LastSession:
    if group.last_rebuild is not None and group.last_rebuild.session == str(session.session):
        return group.last_rebuild
    return LastSession(
        session=str(session.session),
        cause=session.cause.value,
        seconds=f"{session.seconds:.3f}",
        time=to_micro_time(session.time or now),
    )
