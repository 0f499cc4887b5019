"""The status of a job."""

from collections.abc import Mapping, Sequence
from typing import Any

from rollcall_operator.api.conditions import JobCondition, JobPhase, SyncGroupPhase
from rollcall_operator.api.labels import GROUP_DEFAULT
from rollcall_operator.api.status import HISTORY
from rollcall_operator.plan.job_view import JobView
from rollcall_operator.plan.membership.roster import Decision
from rollcall_operator.plan.model import Manifest
from rollcall_operator.plan.status import sessions, write_throttle
from rollcall_operator.plan.status.conditions import (
    ConditionState,
    is_true,
    merge,
    notable_conditions,
    phase,
)
from rollcall_operator.plan.timestamps import to_micro_time, to_time
from rollcall_protocol.wire.roster import Roster

_LONGEST_MESSAGE = 1024


def job_status(
    view: JobView, decision: Decision, findings: Sequence[ConditionState]
) -> write_throttle.StatusWrite:
    """The new status, if it is to be written now."""
    old = view.status
    generation = view.job["metadata"].get("generation", 0)
    conditions = merge(old.get("conditions") or (), findings, generation=generation, now=view.now)
    new: Manifest = {
        **old,
        "observedGeneration": generation,
        "phase": str(phase(conditions)),
        "conditions": conditions,
    }
    if new["phase"] != JobPhase.PENDING or "trainer" in old:
        new |= {
            "startTime": _start_time(view),
            "completionTime": _completion_time(view),
            "progress": _progress(view),
            "trainer": _trainer(view),
            **_rollouts(view),
            **_groups(view, decision),
        }
    clean = {key: value for key, value in new.items() if value is not None}
    return write_throttle.write(old, clean, interval=_interval(old, clean), now=view.now)


def invalid_status(
    job: Manifest, finding: ConditionState, *, now: float
) -> write_throttle.StatusWrite:
    """The status of a job whose spec cannot even be read: all else stays as it is."""
    old: Mapping[str, Any] = job.get("status") or {}
    generation = job["metadata"].get("generation", 0)
    conditions = merge(old.get("conditions") or (), [finding], generation=generation, now=now)
    new = {
        **old,
        "observedGeneration": generation,
        "phase": old.get("phase", str(JobPhase.PENDING)),
        "conditions": conditions,
    }
    return write_throttle.write(old, new, interval=write_throttle.AT_ONCE, now=now)


def _interval(old: Mapping[str, Any], new: Mapping[str, Any]) -> float:
    keys = ("observedGeneration", "phase", "epoch", "completionTime")
    if not old or any(old.get(key) != new.get(key) for key in keys):
        return write_throttle.AT_ONCE
    valid = [is_true(status["conditions"], JobCondition.VALIDATED) for status in (old, new)]
    if valid[0] != valid[1]:
        return write_throttle.AT_ONCE
    if next(sessions.news(old, new), None) is not None:
        return write_throttle.SOON
    starting = new["phase"] == JobPhase.STARTING
    if notable_conditions(old, troubles_only=starting) != notable_conditions(
        new, troubles_only=starting
    ):
        return write_throttle.SOON
    return write_throttle.STARTING if starting else write_throttle.LAZY


def _start_time(view: JobView) -> str | None:
    """When the job began or was last resumed; time suspended does not count."""
    if view.outcome is not None:
        return view.status.get("startTime")
    if view.spec.suspend:
        return None
    return view.status.get("startTime") or to_time(view.now)


def _completion_time(view: JobView) -> str | None:
    if view.outcome is None:
        return None
    return view.status.get("completionTime") or to_time(view.now)


def _progress(view: JobView) -> Manifest:
    """The coordinator's word; without news the last one stands."""
    old = view.status.get("progress") or {}
    stamp = {"lastUpdate": to_micro_time(view.now)}
    if view.snapshot is None:
        first = {"step": 0, "maxSteps": view.spec.algorithm.max_steps, "weightVersion": 0}
        return {**first, **old, **stamp}
    said_now = view.snapshot.progress
    progress: Manifest = {
        "step": said_now.step,
        "maxSteps": said_now.max_steps,
        "weightVersion": said_now.weight_version,
    }
    if said_now.rollout_reward is not None:
        progress["rolloutReward"] = f"{said_now.rollout_reward:.3f}"
    elif "rolloutReward" in old:
        progress["rolloutReward"] = old["rolloutReward"]
    if said_now.paused:
        progress["paused"] = said_now.paused
    if said_now.warning:
        progress["warning"] = said_now.warning
    return {**progress, **stamp}


def _trainer(view: JobView) -> Manifest:
    return {
        "replicas": 0 if view.no_pods_wanted else view.spec.trainer.replicas,
        "ready": sum(pod.ready for pod in view.trainers),
        **view.restarts.as_status(),
    }


def _rollouts(view: JobView) -> Manifest:
    pools = [
        {
            "name": pool.name,
            "replicas": pool.wanted,
            "ready": pool.ready,
            "inSync": sum(view.holds_weights(pod) for pod in pool.pods),
        }
        for pool in view.pools
    ]
    ready = sum(pool.ready for pool in view.pools)
    wanted = sum(pool.wanted for pool in view.pools)
    return {"pools": pools, "rollouts": f"{ready}/{wanted}"}


# --- the sync group -----------------------------------------------------------------------------


def _groups(view: JobView, decision: Decision) -> Manifest:
    old = view.group
    if decision.opened and decision.roster:
        group = _opened(view, decision.roster, decision.message)
    elif old is None:
        return {}
    else:
        group = dict(old)
    entries = [group, *_others(view, int(group["epoch"]))]
    if view.outcome is None:
        entries = [entry | _session(view, entry) for entry in entries]
    return {"syncGroups": entries, "epoch": group["epoch"]}


def _others(view: JobView, epoch: int) -> list[Manifest]:
    """The job's other groups: they follow its roster, and have sessions of their own."""
    told = {group["name"]: dict(group) for group in view.status.get("syncGroups") or ()}
    return [
        {**told.get(group.name, {}), "name": group.name, "engine": group.engine, "epoch": epoch}
        for group in view.spec.weight_sync.groups
    ]


def _opened(view: JobView, roster: Roster, message: str) -> Manifest:
    old = view.group or {}
    record = {
        "epoch": roster.epoch,
        "cause": roster.cause.value,
        "message": message[:_LONGEST_MESSAGE],
        "members": len(roster.members) + 1,
        "time": to_micro_time(view.now),
    }
    return {
        **old,
        "name": GROUP_DEFAULT,
        "engine": view.spec.weight_sync.engine,
        "epoch": roster.epoch,
        "rosterDigest": roster.digest,
        "coordinator": roster.coordinator_uid,
        "history": [*old.get("history", ()), record][-HISTORY:],
    }


def _session(view: JobView, group: Mapping[str, Any]) -> Manifest:
    """Phase and session. Without news from a coordinator that is up, the last report stands."""
    forming = SyncGroupPhase.REBUILDING if "lastRebuild" in group else SyncGroupPhase.FORMING
    report = view.snapshot.group(group["name"]) if view.snapshot else None
    if report is None:
        up = view.coordinator is not None and view.coordinator.running
        opened = group not in (view.status.get("syncGroups") or ())
        phase_now = group["phase"] if up and not opened and "phase" in group else str(forming)
        members = group.get("members", 0) if up else 0
        return {"phase": phase_now, "members": members}
    session = report.session
    new: Manifest = {"rebuilds": report.rebuilds, "phase": str(forming)}
    if session is None:
        return {**new, "members": 0}
    new["members"] = session.members
    if view.group_is_formed(group["name"], epoch=group["epoch"]):
        new["phase"] = str(SyncGroupPhase.STABLE)
    if (group.get("lastRebuild") or {}).get("session") != str(session.session):
        new["lastRebuild"] = {
            "session": str(session.session),
            "cause": session.cause.value,
            "seconds": f"{session.seconds:.3f}",
            "time": to_micro_time(session.time or view.now),
        }
    new["sessions"] = sessions.remembered(group.get("sessions") or (), report.sessions)
    return new
