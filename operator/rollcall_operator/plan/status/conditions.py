"""The conditions of a job, and the one phase that follows from them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from rollcall_operator.api import labels
from rollcall_operator.api.conditions import PROBLEM_REASONS, JobCondition, JobPhase, Reason
from rollcall_operator.plan.job_view import JobView
from rollcall_operator.plan.model import Manifest, PodFacts
from rollcall_operator.plan.status.pod_problems import problem
from rollcall_operator.plan.timestamps import to_time
from rollcall_protocol.wire.job_snapshot import MemberState

_LONGEST = 2000
_NAMED = 4


@dataclass(frozen=True, slots=True)
class ConditionState:
    """A condition without its times."""

    type: StrEnum
    status: bool
    reason: str
    message: str = ""


def merge(
    old: Iterable[Mapping[str, Any]],
    findings: Sequence[ConditionState],
    *,
    generation: int,
    now: float,
) -> list[Manifest]:
    """metav1.Conditions; those that no finding speaks of stay as they are.

    lastTransitionTime changes only when the status flips.
    """
    merged = {condition["type"]: dict(condition) for condition in old}
    for finding in findings:
        status = "True" if finding.status else "False"
        last = merged.get(str(finding.type))
        since = last["lastTransitionTime"] if last and last["status"] == status else to_time(now)
        merged[str(finding.type)] = {
            "type": str(finding.type),
            "status": status,
            "observedGeneration": generation,
            "lastTransitionTime": since,
            "reason": str(finding.reason),
            "message": finding.message[:_LONGEST],
        }
    return list(merged.values())


def is_true(conditions: Iterable[Mapping[str, Any]], kind: StrEnum) -> bool:
    """Whether a condition is there and True."""
    return any(c["type"] == kind and c["status"] == "True" for c in conditions)


def reason_of(conditions: Iterable[Mapping[str, Any]], kind: StrEnum) -> str:
    """Reason of a condition, empty if it is not there."""
    return next((str(c["reason"]) for c in conditions if c["type"] == kind), "")


def notable_conditions(status: Mapping[str, Any], *, troubles_only: bool) -> list[tuple[str, ...]]:
    """What a person would call news in the conditions: not the numbers in good ones."""
    news: list[tuple[str, ...]] = []
    for condition in status.get("conditions") or ():
        if condition["reason"] in PROBLEM_REASONS:
            news.append(tuple(condition[k] for k in ("type", "status", "reason", "message")))
        elif not troubles_only:
            news.append((condition["type"], condition["status"]))
    return news


def phase(conditions: Sequence[Mapping[str, Any]]) -> JobPhase:
    """The one word for a job."""
    if is_true(conditions, JobCondition.FAILED):
        return JobPhase.FAILED
    if is_true(conditions, JobCondition.SUCCEEDED):
        return JobPhase.SUCCEEDED
    if is_true(conditions, JobCondition.SUSPENDED):
        return JobPhase.SUSPENDED
    if is_true(conditions, JobCondition.RUNNING):
        return JobPhase.RUNNING
    if reason_of(conditions, JobCondition.RUNNING) == Reason.RESTARTING:
        return JobPhase.RESTARTING
    if is_true(conditions, JobCondition.VALIDATED) and reason_of(conditions, JobCondition.RUNNING):
        return JobPhase.STARTING
    return JobPhase.PENDING


# --- what is the case ---------------------------------------------------------------------------


def validated(errors: Sequence[str]) -> ConditionState:
    """Whether the spec can be carried out."""
    if not errors:
        return ConditionState(JobCondition.VALIDATED, status=True, reason=Reason.VALID)
    return ConditionState(
        JobCondition.VALIDATED,
        status=False,
        reason=Reason.INVALID_SPEC,
        message="\n".join(errors[:8]),
    )


def findings(view: JobView, errors: Sequence[str], epoch: int) -> list[ConditionState]:
    """All conditions of a job whose spec could be read, `epoch` being the one in force now.

    Before anything was made of a wrong spec there is nothing to say but what is wrong with it.
    """
    found = [validated(errors), _suspended(view)]
    if errors and not view.status.get("trainer") and not view.outcome:
        return found
    if view.outcome is not None:
        outcome = view.outcome
        message = f"the job has finished: {outcome.message}"
        if view.no_pods_wanted:
            types = (
                JobCondition.TRAINER_READY,
                JobCondition.ROLLOUTS_READY,
                JobCondition.WEIGHTS_IN_SYNC,
            )
            found += [_no(kind, Reason.FINISHED, message) for kind in types]
        found.append(_no(JobCondition.RUNNING, Reason.FINISHED, message))
        found.append(ConditionState(outcome.condition, True, outcome.reason, outcome.message))
        return found
    trainer, rollouts = _trainer_ready(view), _rollouts_ready(view)
    return [*found, trainer, rollouts, *_in_sync(view, epoch), _running(view, trainer)]


def _no(kind: JobCondition, reason: Reason, message: str) -> ConditionState:
    return ConditionState(kind, status=False, reason=reason, message=message)


def _suspended(view: JobView) -> ConditionState:
    if view.spec.suspend and view.outcome is None:
        message = "spec.suspend is true"
        return ConditionState(JobCondition.SUSPENDED, True, Reason.SUSPENDED, message)
    return _no(JobCondition.SUSPENDED, Reason.NOT_SUSPENDED, "")


def _trainer_ready(view: JobView) -> ConditionState:
    kind = JobCondition.TRAINER_READY
    if view.spec.suspend:
        return _no(kind, Reason.SUSPENDED, "the job is suspended")
    path, template = "spec.trainer.template", view.spec.trainer.template
    for pod in view.trainers:
        trouble = problem(pod, template, path)
        if trouble:
            return _no(kind, trouble.reason, trouble.message)
    ready, wanted = sum(p.ready for p in view.trainers), view.spec.trainer.replicas
    if ready >= wanted:
        return ConditionState(
            kind, True, Reason.READY, f"{wanted} of {wanted} trainer pods are ready"
        )
    return _no(kind, Reason.STARTING, f"{ready} of {wanted} trainer pods are ready")


def _rollouts_ready(view: JobView) -> ConditionState:
    kind = JobCondition.ROLLOUTS_READY
    if view.spec.suspend:
        return _no(kind, Reason.SUSPENDED, "the job is suspended")
    for pool in view.pools:
        trouble = next(iter(_troubles(pool.pods, pool.raw, f"{pool.path}.template")), None)
        if trouble:
            return _no(kind, trouble[0], trouble[1])
    wanted = sum(pool.wanted for pool in view.pools)
    ready = sum(min(pool.ready, pool.wanted) for pool in view.pools)
    if wanted == 0:
        return _no(kind, Reason.NO_ROLLOUTS, "every pool has 0 replicas; scale one up")
    if ready < wanted:
        return _no(kind, Reason.STARTING, f"{ready} of {wanted} rollouts are ready")
    return ConditionState(kind, True, Reason.READY, f"{wanted} of {wanted} rollouts are ready")


def _troubles(pods: Sequence[PodFacts], pool: Manifest, path: str) -> Iterable[tuple[Reason, str]]:
    for pod in pods:
        trouble = problem(pod, pool["spec"]["template"], path)
        if trouble:
            yield trouble.reason, trouble.message


def pool_trouble(pods: Sequence[PodFacts], pool: Manifest) -> tuple[Reason, str] | None:
    """The first problem of a pool's pods, with paths in the pool itself."""
    return next(iter(_troubles(pods, pool, "spec.template")), None)


def _in_sync(view: JobView, epoch: int) -> list[ConditionState]:
    """Whether the session is that of the epoch and all its rollouts have current weights.

    No news from a coordinator that is up is no reason to say otherwise than before.
    """
    kind = JobCondition.WEIGHTS_IN_SYNC
    if view.spec.suspend:
        return [_no(kind, Reason.SUSPENDED, "the job is suspended")]
    if not view.spec.weight_sync.enabled:
        text = "spec.weightSync.enabled is false: rollouts keep the weights that they began with"
        return [_no(kind, Reason.SYNC_DISABLED, text)]
    if view.snapshot is None:
        told = any(c["type"] == kind for c in view.status.get("conditions") or ())
        up = view.coordinator is not None and view.coordinator.running
        if told and up:
            return []
        return [_no(kind, Reason.NO_COORDINATOR, "trainer rank 0 has not been heard of yet")]
    groups = [labels.GROUP_DEFAULT, *(group.name for group in view.spec.weight_sync.groups)]
    forming = [name for name in groups if not view.group_is_formed(name, epoch=epoch)]
    if forming:
        text = f"the sync group {forming[0]} is being formed"
        return [_no(kind, Reason.REBUILDING, text)]
    members = view.snapshot.members
    behind = [m for m in members if m.state is not MemberState.IN_SYNC]
    if not members:
        return [_no(kind, Reason.NO_ROLLOUTS, "no rollout is a member of the sync group")]
    if not behind:
        text = f"all {len(members)} rollouts have current weights"
        return [ConditionState(kind, True, Reason.IN_SYNC, text)]
    names = ", ".join(f"{m.pod} is {m.state}" for m in behind[:_NAMED])
    more = f" and {len(behind) - _NAMED} more" if len(behind) > _NAMED else ""
    text = f"{len(members) - len(behind)} of {len(members)} rollouts have current weights: "
    return [_no(kind, Reason.CATCHING_UP, f"{text}{names}{more}")]


def _running(view: JobView, trainer: ConditionState) -> ConditionState:
    kind = JobCondition.RUNNING
    if view.spec.suspend:
        return _no(kind, Reason.SUSPENDED, "the job is suspended")
    conditions = view.status.get("conditions") or ()
    ran = is_true(conditions, kind) or reason_of(conditions, kind) == Reason.RESTARTING
    if not trainer.status:
        reason = Reason.RESTARTING if ran else Reason.WAITING_FOR_TRAINER
        return _no(kind, reason, f"the trainer is not ready: {trainer.message}")
    pods = [pod for pool in view.pools for pod in pool.pods if view.holds_weights(pod)]
    least = view.spec.membership.min_rollouts
    if len(pods) < least:
        return _no(
            kind,
            Reason.TOO_FEW_ROLLOUTS,
            f"{len(pods)} of at least {least} rollouts (spec.membership.minRollouts) have current "
            "weights; training waits",
        )
    if not ran and any(pod.almost_ready for pod in pods):
        # Their gates are being opened: say all in one write.
        return _no(kind, Reason.STARTING, "rollouts are becoming ready")
    return ConditionState(kind, True, Reason.TRAINING, "")
