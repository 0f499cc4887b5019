"""The conditions of a job."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from rollcall_operator.api import labels
from rollcall_operator.api.conditions import JobCondition, Reason
from rollcall_operator.api.front import FrontSpec
from rollcall_operator.api.rljob import RLJobSpec, WeightSyncSpec
from rollcall_operator.api.roles import ReferenceSpec
from rollcall_operator.api.status import Condition
from rollcall_operator.api.training import TrainerSpec
from rollcall_operator.plan.external_trainer import uncalled_at_start
from rollcall_operator.plan.failure import JobOutcome
from rollcall_operator.plan.job_view import CoordinatorReport, JobView, PoolView, pods_of_role
from rollcall_operator.plan.model import Manifest, PodFacts
from rollcall_operator.plan.status.condition_state import (
    SUSPENDED_TEXT,
    ConditionState,
    is_true,
    is_unknown,
    reason_of,
)
from rollcall_operator.plan.status.coordinator_contact import (
    CoordinatorContact,
    coordinator_connected,
)
from rollcall_operator.plan.status.enforced_policies import network_policies_enforced
from rollcall_operator.plan.status.learning import learning
from rollcall_operator.plan.status.pod_problems import PodProblem, find_problem
from rollcall_operator.plan.status.refused_pods import creation_failures, refused_pods
from rollcall_operator.plan.status.usable_rewards import rewards_usable
from rollcall_operator.plan.trainer_restart import after_restart, live_stateful_set, outdated_pods
from rollcall_protocol.membership.stretched_bounds import STRETCH_LIMIT
from rollcall_protocol.wire.job_snapshot import LostSessions, MemberReport, MemberState

_MOST_ERRORS = 8
_NAMED_PODS = 4
_SHOWN_REASON = 200  # characters
_SILENT = "the coordinator does not report; condition CoordinatorConnected says why"


def job_conditions(
    view: JobView, contact: CoordinatorContact, errors: Sequence[str], epoch: int
) -> list[ConditionState]:
    """All conditions of a job whose spec could be read; `epoch` is the one in force now.

    A wrong spec of which nothing was created yet has no other conditions.
    """
    spec, outcome, before = view.spec, view.outcome, view.status.conditions
    found = [validated(errors), _suspended(view.job, suspended=spec.suspend and outcome is None)]
    if errors and view.status.trainer is None and outcome is None:
        return found
    if outcome is not None:
        return [*found, *_finished(view, outcome)]
    live = live_stateful_set(view.job, view.observed.children)
    trainers = pods_of_role(view.observed, labels.TRAINER)
    found.append(_trainer_up_to_date(view.job, outdated_pods(live, trainers)))
    enforced = network_policies_enforced(
        before,
        job=view.name,
        enabled=spec.network_policy.enabled,
        enforced=view.observed.policies_enforced,
    )
    if spec.suspend:
        found += [_false(kind, Reason.SUSPENDED, SUSPENDED_TEXT) for kind in _need_pods(spec)]
        return [*found, *enforced, *rewards_usable(spec.reward, view.report.snapshot)]
    report = view.report
    trainer, *others = _pods_ready(view, creation_failures(view.observed))
    found += [*coordinator_connected(contact), *enforced, trainer, *others]
    if not spec.has_rollouts:
        return [*found, _running(before, trainer, contact, serving=(), least=0, unready=None)]
    reference = next((c for c in others if c.type == JobCondition.REFERENCE_READY), None)
    found += _weights_in_sync(spec.weight_sync, report, contact, before, epoch)
    found += [*rewards_usable(spec.reward, report.snapshot), *learning(report.snapshot)]
    running = _running(
        before,
        trainer,
        contact,
        serving=[pod for pool in view.pools for pod in pool.pods if report.holds_weights(pod)],
        least=spec.membership.min_rollouts,
        unready=None if any(pod.ready for pod in view.references) else reference,
    )
    return [*found, running]


def validated(errors: Sequence[str]) -> ConditionState:
    """Whether the spec can be carried out."""
    kind = JobCondition.VALIDATED
    if not errors:
        return ConditionState(kind, True, Reason.VALID, "the spec is valid")
    return _false(kind, Reason.INVALID_SPEC, "\n".join(errors[:_MOST_ERRORS]))


def _false(kind: JobCondition, reason: Reason, message: str) -> ConditionState:
    return ConditionState(kind, False, reason, message)


def _suspended(job: Manifest, *, suspended: bool) -> ConditionState:
    kind = JobCondition.SUSPENDED
    if suspended:
        text = (
            "spec.suspend is true: the job has no pods; set it to false to resume: "
            f"{after_restart(job)}"
        )
        return ConditionState(kind, True, Reason.SUSPENDED, text)
    return _false(kind, Reason.NOT_SUSPENDED, "the job is not suspended")


def _need_pods(spec: RLJobSpec) -> Iterator[JobCondition]:
    """Conditions that are False while the job has no pods."""
    yield JobCondition.COORDINATOR_CONNECTED
    yield JobCondition.TRAINER_READY
    if spec.front is not None:
        yield JobCondition.FRONT_READY
    if spec.reference.template is not None:
        yield JobCondition.REFERENCE_READY
    if spec.has_rollouts:
        yield JobCondition.ROLLOUTS_READY
        yield JobCondition.WEIGHTS_IN_SYNC
    yield JobCondition.RUNNING


def _finished(view: JobView, outcome: JobOutcome) -> Iterator[ConditionState]:
    """Whether pods that are kept are ready; what only a job that goes on reports is unknown."""
    spec, message = view.spec, f"the job has finished: {outcome.message}"
    if view.no_pods_wanted:
        for kind in (JobCondition.TRAINER_UP_TO_DATE, *_need_pods(spec)):
            yield _false(kind, Reason.FINISHED, message)
    else:
        yield from _pods_ready(view, creation_failures(view.observed))
        unknown = [JobCondition.COORDINATOR_CONNECTED, JobCondition.TRAINER_UP_TO_DATE]
        unknown += [JobCondition.WEIGHTS_IN_SYNC] if spec.has_rollouts else []
        for kind in unknown:
            yield ConditionState(kind, None, Reason.FINISHED, message)
        yield _false(JobCondition.RUNNING, Reason.FINISHED, message)
    yield ConditionState(outcome.condition, True, outcome.reason, outcome.message)


def _pods_ready(view: JobView, failures: Mapping[str, str]) -> list[ConditionState]:
    """Whether all pods of the trainer, of the front, of the reference and of the rollouts are
    ready, as far as the job has them.
    """
    spec, job = view.spec, view.name
    found: list[ConditionState | None] = [
        _trainer_ready(spec.trainer, view.trainers, job, failures),
        _front_ready(spec.front, view.fronts, job, failures),
    ]
    if spec.has_rollouts:
        found.append(_reference_ready(spec.reference, view.references, job, failures))
        found.append(_rollouts_ready(view.pools, failures))
    return [condition for condition in found if condition is not None]


def _all_ready(
    kind: JobCondition,
    pods: str,
    problem: PodProblem | None,
    *,
    ready: int,
    wanted: int,
    waits_for: str = "",
) -> ConditionState:
    """Whether `ready` reaches `wanted`; `pods` is what is counted, and `waits_for` what the others
    wait for, for the message.
    """
    if problem is not None:
        return _false(kind, problem.reason, problem.message)
    text = f"{ready} of {wanted} {pods} are ready"
    if ready < wanted:
        return _false(kind, Reason.STARTING, f"{text}: {waits_for}" if waits_for else text)
    return ConditionState(kind, True, Reason.READY, f"{wanted} of {wanted} {pods} are ready")


def _trainer_ready(
    trainer: TrainerSpec, pods: Sequence[PodFacts], job: str, failures: Mapping[str, str]
) -> ConditionState:
    child = f"StatefulSet/{labels.trainer_name(job)}"
    path = "spec.trainer.template"
    template = trainer.template
    problem = pod_problem(pods, template, failures, path=path, child=child, trainer=trainer)
    return _all_ready(
        JobCondition.TRAINER_READY,
        "trainer pods",
        problem,
        ready=sum(pod.ready for pod in pods),
        wanted=trainer.replicas,
        waits_for=uncalled_at_start(trainer, pods),
    )


def _trainer_up_to_date(job: Manifest, outdated: Sequence[PodFacts]) -> ConditionState:
    """Whether the trainer's pods were made from the present spec; they never restart by it."""
    kind, metadata = JobCondition.TRAINER_UP_TO_DATE, job["metadata"]
    if not outdated:
        text = "no trainer pod runs with an earlier template"
        return ConditionState(kind, True, Reason.UP_TO_DATE, text)
    text = (
        "spec.trainer.template or settings of the job have changed, and trainer pods run with the "
        f"former ones until they restart: {len(outdated)}, the first is {outdated[0].name}. "
        f"kubectl annotate rljob {metadata['name']} -n {metadata['namespace']} "
        f'{labels.RESTART_TRAINER}="$(date)" --overwrite restarts them; {after_restart(job)}'
    )
    return _false(kind, Reason.RESTART_NEEDED, text)


def _front_ready(
    front: FrontSpec | None, pods: Sequence[PodFacts], job: str, failures: Mapping[str, str]
) -> ConditionState | None:
    """Whether all pods of the front are ready; None if the job has no front."""
    if front is None:
        return None
    child, path = f"StatefulSet/{labels.front_name(job)}", "spec.front.template"
    problem = pod_problem(pods, front.template, failures, path=path, child=child)
    started = any(pod.up and not pod.ready for pod in pods)
    return _all_ready(
        JobCondition.FRONT_READY,
        "front pods",
        problem,
        ready=sum(pod.ready for pod in pods),
        wanted=front.replicas,
        waits_for="a front pod is ready while a rollout serves" if started else "",
    )


def _reference_ready(
    reference: ReferenceSpec, pods: Sequence[PodFacts], job: str, failures: Mapping[str, str]
) -> ConditionState | None:
    """Whether all of the reference's own pods are ready; None if it has none."""
    if reference.template is None:
        return None
    child = f"Deployment/{labels.reference_name(job)}"
    path = "spec.reference.template"
    problem = pod_problem(pods, reference.template, failures, path=path, child=child)
    ready, wanted = sum(pod.ready for pod in pods), reference.replicas
    kind = JobCondition.REFERENCE_READY
    return _all_ready(kind, "reference pods", problem, ready=ready, wanted=wanted)


def _rollouts_ready(pools: Sequence[PoolView], failures: Mapping[str, str]) -> ConditionState:
    kind, problem = JobCondition.ROLLOUTS_READY, None
    for pool in pools:
        child, template = f"Deployment/{pool.name}", pool.raw["spec"]["template"]
        path = f"{pool.path}.template"
        problem = problem or pod_problem(pool.pods, template, failures, path=path, child=child)
    wanted = sum(pool.wanted for pool in pools)
    ready = sum(min(pool.ready, pool.wanted) for pool in pools)
    if wanted == 0 and problem is None:
        text = "every RolloutPool has 0 replicas, so no samples are generated; scale one up"
        return _false(kind, Reason.NO_ROLLOUTS, text)
    return _all_ready(kind, "rollouts", problem, ready=ready, wanted=wanted)


def pod_problem(
    pods: Iterable[PodFacts],
    template: Manifest,
    failures: Mapping[str, str],
    *,
    path: str,
    child: str,
    trainer: TrainerSpec | None = None,
) -> PodProblem | None:
    """The first problem among the pods of `child` ("Deployment/reverse-cpu"), or why it gets none.

    `failures`: see `creation_failures`. `path` is the pods' template's in the spec, and `trainer`
    the spec of a trainer's pods.
    """
    problems = (find_problem(pod, template, path, trainer) for pod in pods)
    found = next((problem for problem in problems if problem is not None), None)
    return found or refused_pods(failures, child=child, path=path)


def _weights_in_sync(
    sync: WeightSyncSpec,
    report: CoordinatorReport,
    contact: CoordinatorContact,
    before: Sequence[Condition],
    epoch: int,
) -> list[ConditionState]:
    """Whether all rollouts of the current session serve current weights.

    Without a report from a coordinator that runs, the condition stays as it was `before`.
    """
    kind = JobCondition.WEIGHTS_IN_SYNC
    if not sync.enabled:
        text = "spec.weightSync.enabled is false: rollouts keep their initial weights"
        return [_false(kind, Reason.SYNC_DISABLED, text)]
    if contact.failure is not None or report.snapshot is None:
        return _in_sync_without_report(contact, known=any(c.type == kind for c in before))
    for group in report.snapshot.groups:
        if group.lost_sessions is not None:
            text = _lost_sessions(group.name, group.lost_sessions)
            return [_false(kind, Reason.SESSIONS_KEEP_ENDING, text)]
    for name in (labels.GROUP_DEFAULT, *(group.name for group in sync.groups)):
        if not report.group_is_formed(name, epoch=epoch):
            text = f"sync group {name}: a communication session for epoch {epoch} is being formed"
            return [_false(kind, Reason.REBUILDING, text)]
    members = report.snapshot.members
    behind = [m for m in members if m.state is not MemberState.IN_SYNC]
    if not members:
        return [_false(kind, Reason.NO_ROLLOUTS, "no rollout has joined the sync group")]
    if not behind:
        text = f"all {len(members)} rollouts serve current weights"
        return [ConditionState(kind, True, Reason.IN_SYNC, text)]
    names = ", ".join(map(_state_of, behind[:_NAMED_PODS]))
    more = f" and {len(behind) - _NAMED_PODS} more" if len(behind) > _NAMED_PODS else ""
    text = f"{len(members) - len(behind)} of {len(members)} rollouts serve current weights: "
    return [_false(kind, Reason.CATCHING_UP, f"{text}{names}{more}")]


def _state_of(member: MemberReport) -> str:
    why = member.why[:_SHOWN_REASON]
    return f"{member.pod} is {member.state}" + (f" ({why})" if why else "")


def _lost_sessions(group: str, lost: LostSessions) -> str:
    """What ended the sessions of a sync group, and what helps."""
    raised = (
        ""
        if lost.bound is None
        else f", or raise spec.{lost.bound}, which is stretched to at most {STRETCH_LIMIT:g} "
        "times its value"
    )
    return (
        f"sync group {group}: {lost.sessions} sessions in a row ended within {lost.seconds:.0f} "
        f"s, and no version reached the rollouts in between. The last: {lost.detail}. If nodes are "
        f"busy, give the pods of trainer and rollouts more CPU{raised}"
    )


def _in_sync_without_report(contact: CoordinatorContact, *, known: bool) -> list[ConditionState]:
    """Unknown where the coordinator has fallen silent; as it was where it only starts again.

    `known`: the condition exists already.
    """
    kind = JobCondition.WEIGHTS_IN_SYNC
    if contact.failure is not None:
        return [ConditionState(kind, None, Reason.NO_COORDINATOR, _SILENT)]
    running = contact.pod is not None and contact.pod.running
    if known and running:
        return []
    state = "has not reported to the operator yet" if running else "is not running"
    text = f"the coordinator in pod {contact.pod_name} {state}"
    return [_false(kind, Reason.NO_COORDINATOR, text)]


def _running(
    before: Sequence[Condition],
    trainer: ConditionState,
    contact: CoordinatorContact,
    *,
    serving: Sequence[PodFacts],
    least: int,
    unready: ConditionState | None,
) -> ConditionState:
    """Whether the job trains. `before`: the conditions in status. `serving`: rollouts with current
    weights, of which it needs `least`. `unready`: the condition of a reference that has no pod yet.
    """
    kind = JobCondition.RUNNING
    restarts = reason_of(before, kind) == Reason.RESTARTING
    ran = is_true(before, kind) or is_unknown(before, kind) or restarts
    if not trainer.status:
        reason = Reason.RESTARTING if ran else Reason.WAITING_FOR_TRAINER
        return _false(kind, reason, f"the trainer is not ready: {trainer.message}")
    if contact.failure is not None:
        return ConditionState(kind, None, Reason.NO_COORDINATOR, _SILENT)
    if len(serving) < least:
        text = (
            f"training is paused: rollouts that serve current weights: {len(serving)}, required by "
            f"spec.membership.minRollouts: {least}"
        )
        return _false(kind, Reason.TOO_FEW_ROLLOUTS, text)
    if unready is not None:
        text = f"training waits for a reference pod: {unready.message}"
        return _false(kind, Reason.WAITING_FOR_REFERENCE, text)
    if not ran and any(pod.almost_ready for pod in serving):
        # Their gates open with this reconcile: the next one writes all conditions at once.
        return _false(kind, Reason.STARTING, "the rollouts are becoming ready")
    return ConditionState(kind, True, Reason.TRAINING, "training is in progress")
