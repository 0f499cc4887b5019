"""The conditions of a job, and the phase that sums them up."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from rollcall_operator.api import labels
from rollcall_operator.api.conditions import (
    PROBLEM_REASONS,
    JobCondition,
    JobPhase,
    PoolCondition,
    Reason,
)
from rollcall_operator.api.status import Condition, RLJobStatus, RolloutPoolStatus
from rollcall_operator.plan.job_view import JobView
from rollcall_operator.plan.model import Manifest, PodFacts
from rollcall_operator.plan.status.condition_state import SUSPENDED_TEXT, ConditionState
from rollcall_operator.plan.status.coordinator_contact import (
    contact_failure,
    coordinator_connected,
)
from rollcall_operator.plan.status.enforced_policies import network_policies_enforced
from rollcall_operator.plan.status.pod_problems import PodProblem, find_problem
from rollcall_operator.plan.status.refused_pods import refused_pods
from rollcall_operator.plan.status.usable_rewards import rewards_usable
from rollcall_operator.plan.timestamps import to_time
from rollcall_operator.plan.trainer_restart import after_restart, outdated_pods
from rollcall_protocol.wire.job_snapshot import MemberState

_LONGEST = 2000
_MOST_ERRORS = 8
_NAMED_PODS = 4
_STATUSES: dict[bool | None, Literal["True", "False", "Unknown"]] = {
    True: "True",
    False: "False",
    None: "Unknown",
}
_SILENT = "the coordinator does not report; condition CoordinatorConnected says why"


def merge_conditions(
    old: Iterable[Condition], states: Iterable[ConditionState], *, generation: int, now: float
) -> tuple[Condition, ...]:
    """The conditions with `states` written over; those without a new state stay as they are.

    lastTransitionTime changes only when the condition's status does.
    """
    merged = {condition.type: condition for condition in old}
    for state in states:
        status = _STATUSES[state.status]
        last = merged.get(state.type)
        unchanged = last is not None and last.status == status
        merged[str(state.type)] = Condition(
            type=str(state.type),
            status=status,
            observed_generation=generation,
            last_transition_time=last.last_transition_time if last and unchanged else to_time(now),
            reason=str(state.reason),
            message=state.message[:_LONGEST],
        )
    return tuple(merged.values())


def is_true(conditions: Iterable[Condition], kind: JobCondition | PoolCondition) -> bool:
    """Whether a condition is present and True."""
    return any(c.type == kind and c.status == "True" for c in conditions)


def is_unknown(conditions: Iterable[Condition], kind: JobCondition) -> bool:
    """Whether a condition is present and Unknown."""
    return any(c.type == kind and c.status == "Unknown" for c in conditions)


def reason_of(conditions: Iterable[Condition], kind: JobCondition) -> str:
    """Reason of a condition; empty if it is absent."""
    return next((c.reason for c in conditions if c.type == kind), "")


def notable_conditions(
    status: RLJobStatus | RolloutPoolStatus, *, problems_only: bool
) -> list[tuple[str, ...]]:
    """The parts of the conditions whose change is worth a write: problems with their messages, of
    the others only whether they are True.
    """
    notable: list[tuple[str, ...]] = []
    for c in status.conditions:
        if c.reason in PROBLEM_REASONS:
            notable.append((c.type, c.status, c.reason, c.message))
        elif not problems_only:
            notable.append((c.type, c.status))
    return notable


def phase_of(conditions: Sequence[Condition]) -> JobPhase:
    """The conditions in one word."""
    if is_true(conditions, JobCondition.FAILED):
        return JobPhase.FAILED
    if is_true(conditions, JobCondition.SUCCEEDED):
        return JobPhase.SUCCEEDED
    if is_true(conditions, JobCondition.SUSPENDED):
        return JobPhase.SUSPENDED
    if is_true(conditions, JobCondition.RUNNING):
        return JobPhase.RUNNING
    if is_unknown(conditions, JobCondition.RUNNING):
        return JobPhase.UNKNOWN
    if reason_of(conditions, JobCondition.RUNNING) == Reason.RESTARTING:
        return JobPhase.RESTARTING
    if is_true(conditions, JobCondition.VALIDATED) and reason_of(conditions, JobCondition.RUNNING):
        return JobPhase.STARTING
    return JobPhase.PENDING


# --- one function for each condition ------------------------------------------------------------


def job_conditions(view: JobView, errors: Sequence[str], epoch: int) -> list[ConditionState]:
    """All conditions of a job whose spec could be read; `epoch` is the one in force now.

    A wrong spec of which nothing was created yet has no other conditions.
    """
    found = [validated(errors), _suspended(view)]
    if errors and view.status.trainer is None and view.outcome is None:
        return found
    if view.outcome is not None:
        return [*found, *_finished(view)]
    trainer = _trainer_ready(view)
    found += [_trainer_up_to_date(view), *coordinator_connected(view)]
    found += network_policies_enforced(view)
    if view.spec.algorithm is None:  # a supervised job has no rollouts
        return [*found, trainer, _running(view, trainer, None)]
    of_rollouts = (
        _rollouts_ready(view),
        *_weights_in_sync(view, epoch),
        *rewards_usable(view),
    )
    reference = _reference_ready(view)
    of_reference = () if reference is None else (reference,)
    running = _running(view, trainer, reference)
    return [*found, trainer, *of_reference, *of_rollouts, running]


def validated(errors: Sequence[str]) -> ConditionState:
    """Whether the spec can be carried out."""
    kind = JobCondition.VALIDATED
    if not errors:
        return ConditionState(kind, True, Reason.VALID, "the spec is valid")
    return _false(kind, Reason.INVALID_SPEC, "\n".join(errors[:_MOST_ERRORS]))


def _false(kind: JobCondition, reason: Reason, message: str) -> ConditionState:
    return ConditionState(kind, False, reason, message)


def _suspended(view: JobView) -> ConditionState:
    kind = JobCondition.SUSPENDED
    if view.spec.suspend and view.outcome is None:
        text = (
            "spec.suspend is true: the job has no pods; set it to false to resume: "
            f"{after_restart(view.job)}"
        )
        return ConditionState(kind, True, Reason.SUSPENDED, text)
    return _false(kind, Reason.NOT_SUSPENDED, "the job is not suspended")


def _finished(view: JobView) -> Iterator[ConditionState]:
    outcome = view.outcome
    if outcome is None:
        raise ValueError("the job has not finished")
    message = f"the job has finished: {outcome.message}"
    if view.no_pods_wanted:
        kinds = [
            JobCondition.TRAINER_READY,
            JobCondition.TRAINER_UP_TO_DATE,
            JobCondition.COORDINATOR_CONNECTED,
        ]
        if view.spec.reference.template is not None:
            kinds.append(JobCondition.REFERENCE_READY)
        if view.spec.algorithm is not None:
            kinds += [JobCondition.ROLLOUTS_READY, JobCondition.WEIGHTS_IN_SYNC]
        for kind in kinds:
            yield _false(kind, Reason.FINISHED, message)
    yield _false(JobCondition.RUNNING, Reason.FINISHED, message)
    yield ConditionState(outcome.condition, True, outcome.reason, outcome.message)


def _trainer_ready(view: JobView) -> ConditionState:
    kind = JobCondition.TRAINER_READY
    if view.spec.suspend:
        return _false(kind, Reason.SUSPENDED, SUSPENDED_TEXT)
    child = f"StatefulSet/{labels.trainer_name(view.name)}"
    template, path = view.spec.trainer.template, "spec.trainer.template"
    found = pod_problem(view, view.trainers, template, path=path, child=child)
    if found:
        return _false(kind, found.reason, found.message)
    ready, wanted = sum(p.ready for p in view.trainers), view.spec.trainer.replicas
    if ready < wanted:
        text = f"{ready} of {wanted} trainer pods are ready"
        return _false(kind, Reason.STARTING, text)
    return ConditionState(kind, True, Reason.READY, f"{wanted} of {wanted} trainer pods are ready")


def _trainer_up_to_date(view: JobView) -> ConditionState:
    """Whether the trainer's pods were made from the present spec; they never restart by it."""
    kind, outdated = JobCondition.TRAINER_UP_TO_DATE, outdated_pods(view)
    if not outdated:
        text = "no trainer pod runs with an earlier template"
        return ConditionState(kind, True, Reason.UP_TO_DATE, text)
    text = (
        "spec.trainer.template or settings of the job have changed, and trainer pods run with the "
        f"former ones until they restart: {len(outdated)}, the first is {outdated[0].name}. "
        f"kubectl annotate rljob {view.name} -n {view.observed.namespace} "
        f'{labels.RESTART_TRAINER}="$(date)" --overwrite restarts them; {after_restart(view.job)}'
    )
    return _false(kind, Reason.RESTART_NEEDED, text)


def _reference_ready(view: JobView) -> ConditionState | None:
    """Whether all of the reference's own pods are ready; None if it has none."""
    kind, reference = JobCondition.REFERENCE_READY, view.spec.reference
    if reference.template is None:
        return None
    if view.spec.suspend:
        return _false(kind, Reason.SUSPENDED, SUSPENDED_TEXT)
    child = f"Deployment/{labels.reference_name(view.name)}"
    template, path = reference.template, "spec.reference.template"
    found = pod_problem(view, view.references, template, path=path, child=child)
    if found:
        return _false(kind, found.reason, found.message)
    ready, wanted = sum(p.ready for p in view.references), reference.replicas
    if ready < wanted:
        return _false(kind, Reason.STARTING, f"{ready} of {wanted} reference pods are ready")
    text = f"{wanted} of {wanted} reference pods are ready"
    return ConditionState(kind, True, Reason.READY, text)


def _rollouts_ready(view: JobView) -> ConditionState:
    kind = JobCondition.ROLLOUTS_READY
    if view.spec.suspend:
        return _false(kind, Reason.SUSPENDED, SUSPENDED_TEXT)
    for pool in view.pools:
        child, template = f"Deployment/{pool.name}", pool.raw["spec"]["template"]
        path = f"{pool.path}.template"
        found = pod_problem(view, pool.pods, template, path=path, child=child)
        if found:
            return _false(kind, found.reason, found.message)
    wanted = sum(pool.wanted for pool in view.pools)
    ready = sum(min(pool.ready, pool.wanted) for pool in view.pools)
    if wanted == 0:
        text = "every RolloutPool has 0 replicas, so no samples are generated; scale one up"
        return _false(kind, Reason.NO_ROLLOUTS, text)
    if ready < wanted:
        return _false(kind, Reason.STARTING, f"{ready} of {wanted} rollouts are ready")
    return ConditionState(kind, True, Reason.READY, f"{wanted} of {wanted} rollouts are ready")


def pod_problem(
    view: JobView, pods: Iterable[PodFacts], template: Manifest, *, path: str, child: str
) -> PodProblem | None:
    """The first problem among the pods of `child` ("Deployment/reverse-cpu"), or why it gets none.

    `path` is the pods' template's in the spec.
    """
    problems = (find_problem(pod, template, path) for pod in pods)
    found = next((problem for problem in problems if problem is not None), None)
    observed = view.observed
    return found or refused_pods(
        observed.children, observed.creation_failures, child=child, path=path
    )


def _weights_in_sync(view: JobView, epoch: int) -> list[ConditionState]:
    """Whether all rollouts of the current session serve current weights.

    Without a report from a coordinator that runs, the condition stays as it was.
    """
    kind = JobCondition.WEIGHTS_IN_SYNC
    if view.spec.suspend:
        return [_false(kind, Reason.SUSPENDED, SUSPENDED_TEXT)]
    if not view.spec.weight_sync.enabled:
        text = "spec.weightSync.enabled is false: rollouts keep their initial weights"
        return [_false(kind, Reason.SYNC_DISABLED, text)]
    if contact_failure(view) is not None or view.snapshot is None:
        return _in_sync_without_report(view)
    groups = [labels.GROUP_DEFAULT, *(group.name for group in view.spec.weight_sync.groups)]
    for name in groups:
        if not view.group_is_formed(name, epoch=epoch):
            text = f"sync group {name}: a communication session for epoch {epoch} is being formed"
            return [_false(kind, Reason.REBUILDING, text)]
    members = view.snapshot.members
    behind = [m for m in members if m.state is not MemberState.IN_SYNC]
    if not members:
        return [_false(kind, Reason.NO_ROLLOUTS, "no rollout has joined the sync group")]
    if not behind:
        text = f"all {len(members)} rollouts serve current weights"
        return [ConditionState(kind, True, Reason.IN_SYNC, text)]
    names = ", ".join(f"{m.pod} is {m.state}" for m in behind[:_NAMED_PODS])
    more = f" and {len(behind) - _NAMED_PODS} more" if len(behind) > _NAMED_PODS else ""
    text = f"{len(members) - len(behind)} of {len(members)} rollouts serve current weights: "
    return [_false(kind, Reason.CATCHING_UP, f"{text}{names}{more}")]


def _in_sync_without_report(view: JobView) -> list[ConditionState]:
    """Unknown where the coordinator has fallen silent; as it was where it only starts again."""
    kind = JobCondition.WEIGHTS_IN_SYNC
    if contact_failure(view) is not None:
        return [ConditionState(kind, None, Reason.NO_COORDINATOR, _SILENT)]
    known = any(c.type == kind for c in view.status.conditions)
    running = view.coordinator is not None and view.coordinator.running
    if known and running:
        return []
    pod = labels.coordinator_pod(view.name)
    state = "has not reported to the operator yet" if running else "is not running"
    return [_false(kind, Reason.NO_COORDINATOR, f"the coordinator in pod {pod} {state}")]


def _running(
    view: JobView, trainer: ConditionState, reference: ConditionState | None
) -> ConditionState:
    kind = JobCondition.RUNNING
    if view.spec.suspend:
        return _false(kind, Reason.SUSPENDED, SUSPENDED_TEXT)
    conditions = view.status.conditions
    restarts = reason_of(conditions, kind) == Reason.RESTARTING
    ran = is_true(conditions, kind) or is_unknown(conditions, kind) or restarts
    if not trainer.status:
        reason = Reason.RESTARTING if ran else Reason.WAITING_FOR_TRAINER
        return _false(kind, reason, f"the trainer is not ready: {trainer.message}")
    if contact_failure(view) is not None:
        return ConditionState(kind, None, Reason.NO_COORDINATOR, _SILENT)
    pods = [pod for pool in view.pools for pod in pool.pods if view.holds_weights(pod)]
    least = view.spec.membership.min_rollouts if view.spec.algorithm else 0
    if len(pods) < least:
        text = (
            f"training is paused: rollouts that serve current weights: {len(pods)}, required by "
            f"spec.membership.minRollouts: {least}"
        )
        return _false(kind, Reason.TOO_FEW_ROLLOUTS, text)
    if reference is not None and not any(pod.ready for pod in view.references):
        text = f"training waits for a reference pod: {reference.message}"
        return _false(kind, Reason.WAITING_FOR_REFERENCE, text)
    if not ran and any(pod.almost_ready for pod in pods):
        # Their gates open with this reconcile: the next one writes all conditions at once.
        return _false(kind, Reason.STARTING, "the rollouts are becoming ready")
    return ConditionState(kind, True, Reason.TRAINING, "training is in progress")
