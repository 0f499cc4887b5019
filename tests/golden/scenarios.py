"""What can happen to a job, each once, so that the planner says everything that it can say."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from rollcall_operator.api import labels
from rollcall_operator.plan.apply_needed import digest
from rollcall_operator.plan.children.pod_template import TOKEN_PATH
from rollcall_operator.plan.model import LinkFacts, LinkFailure, NodeFacts, Refusal, Taint
from rollcall_operator.plan.refusals import NO_CHILD
from rollcall_protocol.pod_contract import ExitCode
from rollcall_protocol.wire.ids import SessionId
from rollcall_protocol.wire.job_snapshot import (
    LostSessions,
    MemberState,
    SessionCause,
    SessionReport,
    SuspicionCause,
    TimeBound,
    TrainingResult,
)
from rollcall_protocol.wire.learning import LearningReport, LearningState
from rollcall_protocol.wire.reward_errors import RewardError, RewardErrorKind, RewardFailure
from tests.apiserver.bad_manifests.manifests import FRONT, OWN_REFERENCE, Changes
from tests.apiserver.bad_manifests.refused_at_apply import NO_ALGORITHM, REFUSED_AT_APPLY
from tests.apiserver.bad_manifests.reported_in_a_condition import REPORTED_IN_A_CONDITION
from tests.unit.rollcall_operator.plan.simulator import START, JobSimulator, lent_pool, orphaned

Scenario = Callable[[], JobSimulator]

TRAINER = "spec.trainer.template.spec.containers[0]"
SPOT = Taint("karpenter.sh/disrupted")


def running(changes: Changes | None = None) -> JobSimulator:
    """A job that has trained for a while, with two rollouts."""
    simulator = JobSimulator(changes)
    simulator.to_running()
    simulator.converge(1000)
    return simulator


def suspended_with(changes: Changes) -> JobSimulator:
    simulator = running(changes)
    simulator.edit({"spec.suspend": True})
    simulator.converge(1)
    return simulator


def succeeded_with(changes: Changes) -> JobSimulator:
    simulator = running(changes)
    simulator.report(step=200, finished=TrainingResult(step=200))
    simulator.converge(1)
    return simulator


def rollout(simulator: JobSimulator, number: int = 0) -> str:
    """Uid of a rollout pod."""
    return simulator.pods_of("bad-cpu")[number].uid


# --- a job from start to end --------------------------------------------------------------------


def starts_and_succeeds() -> JobSimulator:
    simulator = running()
    simulator.report(step=200, finished=TrainingResult(step=200))
    simulator.converge(1)
    return simulator


def lent_pool_follows_the_job() -> JobSimulator:
    simulator = JobSimulator()
    simulator.pools["lent"] = lent_pool()
    simulator.to_running()
    simulator.edit({"spec.suspend": True})
    simulator.converge(1)
    simulator.edit({"spec.suspend": False})
    simulator.schedule()
    simulator.run()
    simulator.converge(2)
    simulator.report(finished=TrainingResult(step=200))
    simulator.converge(5)
    return simulator


def training_fails() -> JobSimulator:
    simulator = running()
    simulator.report(step=7, finished=TrainingResult(step=7, error="the loss is not a number"))
    simulator.converge(1)
    return simulator


def network_policies_are_not_enforced() -> JobSimulator:
    """Until the cluster gets another network, and the user turns them off."""
    simulator = running()
    for enforced in (False, True):
        simulator.policies_enforced = enforced
        simulator.converge(5)
    simulator.policies_enforced = None
    simulator.edit({"spec.networkPolicy.enabled": False})
    simulator.converge(5)
    return simulator


def rewards_fail(error: RewardError, on_error: str = "Reject") -> Scenario:
    """For a while, and no more."""

    def scenario() -> JobSimulator:
        simulator = running({"spec.reward.onError": on_error})
        failure = RewardFailure("my_task:score", error, 17, (0, 4, 9, 1))
        simulator.report(step=7, reward_failure=failure)
        simulator.converge(5)
        simulator.report(step=9)
        simulator.converge(5)
        return simulator

    return scenario


def sessions_keep_ending() -> JobSimulator:
    """For a while, and no more."""
    simulator = running()
    lost = LostSessions(7, 95.4, TimeBound.JOIN, "join timed out")
    simulator.report(step=7, lost_sessions=lost)
    simulator.converge(5)
    simulator.report(step=8)
    simulator.converge(5)
    return simulator


REWARD_ERRORS = {
    RewardErrorKind.RAISED: "KeyError: 'answer'",
    RewardErrorKind.NOT_FINITE: "nan",
    RewardErrorKind.NOT_A_NUMBER: "None",
    RewardErrorKind.TOO_LARGE: "2000000.0",
    RewardErrorKind.TIMED_OUT: "30 s",
    RewardErrorKind.PROCESS_DIED: "signal SIGKILL",
    RewardErrorKind.BAD_ANSWER: "step returned None, not (observation, reward, done)",
}


def training_gets_nowhere(state: LearningState, **seen: float) -> Scenario:
    """For a while; then it learns, and in the end it has converged."""

    def scenario() -> JobSimulator:
        simulator = running()
        for report in (
            LearningReport(state, 1, 20, **seen),
            LearningReport(LearningState.LEARNING, 31, 50, low=0, high=1),
            LearningReport(LearningState.CONVERGED, 131, 150, low=0.95, high=1),
        ):
            simulator.report(step=report.last_step, learning=report)
            simulator.converge(20)
        return simulator

    return scenario


STANDSTILLS: dict[LearningState, dict[str, float]] = {
    LearningState.REWARDS_ALIKE: {"low": 0, "high": 0.25},
    LearningState.RESPONSES_CUT_OFF: {"low": 0, "high": 0.3333, "share": 0.98},
    LearningState.MISMATCH_GROWS: {"low": 0.0004, "high": 0.0213},
    LearningState.PROMPT_REPEATED: {},
}


def deadline_passes() -> JobSimulator:
    simulator = running({"spec.activeDeadlineSeconds": 60})
    simulator.converge(100)
    return simulator


def suspended() -> JobSimulator:
    simulator = running()
    simulator.edit({"spec.suspend": True})
    simulator.converge(1)
    return simulator


def suspended_and_resumed() -> JobSimulator:
    simulator = suspended()
    simulator.schedule()
    simulator.edit({"spec.suspend": False})
    simulator.converge(1)
    return simulator


def too_few_rollouts_are_left() -> JobSimulator:
    simulator = running({"spec.membership.minRollouts": 2})
    simulator.change(simulator.pods_of("bad-cpu")[0], terminating=True)
    simulator.reconcile(2)
    simulator.report()
    simulator.converge(2)
    return simulator


def scaled_up_and_down() -> JobSimulator:
    simulator = running()
    simulator.scale("bad-cpu", 8)
    simulator.converge(1)
    simulator.schedule()
    simulator.run()
    simulator.converge(5)
    simulator.report()
    simulator.converge(5)
    simulator.scale("bad-cpu", 1)
    simulator.converge(1)
    simulator.schedule()
    simulator.converge(1)
    return simulator


def without_rollouts() -> JobSimulator:
    simulator = running()
    simulator.scale("bad-cpu", 0)
    simulator.converge(5)
    return simulator


# --- the trainer --------------------------------------------------------------------------------


def trainer_exits(
    code: int, message: str = "", changes: Changes | None = None, *, oom_killed: bool = False
) -> Scenario:
    def scenario() -> JobSimulator:
        simulator = running(changes)
        simulator.change(
            simulator.trainer,
            restarts=1,
            exit_code=code,
            exit_message=message,
            oom_killed=oom_killed,
            ready=False,
            running=False,
        )
        simulator.converge(5)
        return simulator

    return scenario


def trainer_restarts_too_often() -> JobSimulator:
    simulator = running({"spec.failurePolicy.maxRestarts": 1})
    simulator.change(
        simulator.trainer,
        restarts=2,
        exit_code=137,
        exit_message="OOMKilled, it used more memory than its limit",
        oom_killed=True,
        ready=False,
    )
    simulator.converge(5)
    return simulator


def trainer_restarts_too_often_unseen() -> JobSimulator:
    simulator = running({"spec.failurePolicy.maxRestarts": 1})
    simulator.change(simulator.trainer, restarts=2, ready=False)
    simulator.converge(5)
    return simulator


def trainer_does_not_start() -> JobSimulator:
    simulator = JobSimulator()
    simulator.converge()
    simulator.schedule()
    for pod in list(simulator.pods.values()):
        simulator.change(pod, unschedulable="0/3 nodes are available: 3 Insufficient cpu.")
    simulator.converge(5)
    return simulator


def coordinator_is_replaced() -> JobSimulator:
    simulator = running()
    del simulator.pods[simulator.trainer.uid]
    simulator.converge(1)
    simulator.schedule()
    simulator.run(simulator.trainer)
    simulator.change(simulator.trainer, node="node-2")
    simulator.converge(5)
    return simulator


def trainer_template_changes(changes: Changes | None = None) -> Scenario:
    def scenario() -> JobSimulator:
        simulator = running(changes)
        simulator.edit({f"{TRAINER}.image": "rollcall/worker:2"})
        simulator.converge(5)
        simulator.converge(5)
        return simulator

    return scenario


def trainer_restarts_by_annotation() -> JobSimulator:
    simulator = running()
    simulator.edit({"metadata.annotations": {labels.RESTART_TRAINER: "now"}})
    simulator.converge(5)
    return simulator


def trainer_is_killed_twice() -> JobSimulator:
    simulator = running()
    simulator.change(
        simulator.trainer,
        restarts=1,
        exit_code=137,
        exit_message="Error",
        ran_for=14.0,
        ready=False,
        running=False,
        waiting_reason="CrashLoopBackOff",
    )
    simulator.converge(5)
    return simulator


def rollouts_reject_the_reward() -> JobSimulator:
    simulator = running()
    for pod in simulator.pods_of("bad-cpu"):
        simulator.change(
            pod,
            restarts=3,
            exit_code=64,
            exit_message="spec.reward.function: cannot import 'my_task': SyntaxError",
            ready=False,
            running=False,
            waiting_reason="CrashLoopBackOff",
        )
    simulator.converge(5)
    return simulator


def pods_of_a_finished_job_stay() -> JobSimulator:
    simulator = running({"spec.cleanPodPolicy": "None"})
    simulator.report(step=200, finished=TrainingResult(step=200))
    simulator.converge(5)
    return simulator


def quota_refuses_pods() -> JobSimulator:
    simulator = JobSimulator()
    simulator.converge()
    refused = "is forbidden: exceeded quota: small, requested: pods=1, limited: pods=0"
    simulator.creation_failures["StatefulSet/bad-trainer"] = (
        f'create Pod bad-trainer-0 in StatefulSet bad-trainer failed error: pods "x" {refused}'
    )
    failure = {"type": "ReplicaFailure", "status": "True", "message": f'pods "y" {refused}'}
    simulator.children["Deployment/bad-cpu"]["status"] = {"conditions": [failure]}
    simulator.converge(5)
    return simulator


def quota_refuses_pods_of_front_and_reference() -> JobSimulator:
    simulator = JobSimulator({**FRONT, **OWN_REFERENCE})
    simulator.converge()
    refused = 'pods "x" is forbidden: exceeded quota: small, requested: pods=1, limited: pods=0'
    simulator.creation_failures["StatefulSet/bad-front"] = refused
    failure = {"type": "ReplicaFailure", "status": "True", "message": refused}
    simulator.children["Deployment/bad-reference"]["status"] = {"conditions": [failure]}
    simulator.converge(5)
    return simulator


def front_and_reference_fit_no_node() -> JobSimulator:
    simulator = JobSimulator({**FRONT, **OWN_REFERENCE})
    simulator.converge()
    simulator.schedule()
    why = "0/1 nodes are available: 1 node(s) had untolerated taint {nvidia.com/gpu: present}."
    for pod in (*simulator.pods_of("bad-front"), *simulator.pods_of("bad-reference")):
        simulator.change(pod, unschedulable=why)
    simulator.converge(5)
    return simulator


def orphaned_service() -> JobSimulator:
    simulator = orphaned()
    simulator.pools.clear()
    simulator.converge()
    return simulator


def service_with_another_owner() -> JobSimulator:
    simulator = running()
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "another", "uid": "u"}
    simulator.children["Service/bad-trainer"]["metadata"]["ownerReferences"] = [owner]
    simulator.converge(60)
    return simulator


def orphans_are_adopted() -> JobSimulator:
    simulator = orphaned()
    simulator.edit({"metadata.annotations": {labels.ADOPT_CHILDREN: "true"}})
    simulator.converge()
    return simulator


def trainer_on_a_terminating_node() -> JobSimulator:
    simulator = running()
    simulator.nodes = {"node-1": NodeFacts("node-1", (SPOT,))}
    simulator.change(simulator.trainer, node="node-1")
    simulator.reconcile(1)
    return simulator


def trainer_on_a_lost_node() -> JobSimulator:
    simulator = running()
    simulator.nodes = {"node-1": NodeFacts("node-1", lost=True)}
    trainer = simulator.trainer
    simulator.change(trainer, node="node-1", terminating=True, leaves_by=simulator.now)
    simulator.reconcile(60)
    return simulator


# --- rollouts -----------------------------------------------------------------------------------


def rollout_fails(**facts: object) -> Scenario:
    def scenario() -> JobSimulator:
        simulator = running()
        pod = simulator.pods_of("bad-cpu")[0]
        simulator.change(pod, running=False, **facts)
        simulator.converge(5)
        return simulator

    return scenario


def lent_rollout_fails() -> JobSimulator:
    simulator = JobSimulator()
    simulator.pools["lent"] = lent_pool()
    simulator.to_running()
    pod = simulator.pods_of("lent")[0]
    simulator.change(pod, running=False, waiting_reason="ImagePullBackOff")
    simulator.converge(5)
    return simulator


def rollouts_are_lost() -> JobSimulator:
    simulator = running({"spec.rollouts[0].replicas": 6})
    gone, terminating, exited, failed = simulator.pods_of("bad-cpu")[:4]
    del simulator.pods[gone.uid]
    simulator.change(terminating, terminating=True)
    simulator.change(exited, running=False, exit_code=1, exit_message="RuntimeError: CUDA error")
    simulator.change(failed, phase="Failed")
    simulator.converge(1)
    return simulator


def operator_restarts_and_rollouts_changed() -> JobSimulator:
    simulator = running()
    simulator.memory = type(simulator.memory)()
    del simulator.pods[rollout(simulator)]
    simulator.converge(1)
    return simulator


def too_few_rollouts_in_sync() -> JobSimulator:
    simulator = running({"spec.membership.minRollouts": 2})
    simulator.report(states={rollout(simulator): MemberState.STALE})
    simulator.converge(5)
    return simulator


def many_rollouts_behind() -> JobSimulator:
    simulator = running({"spec.rollouts[0].replicas": 6})
    simulator.report(states=dict.fromkeys(simulator.pods, MemberState.CATCHING_UP))
    simulator.converge(5)
    return simulator


def rollout_is_drained() -> JobSimulator:
    simulator = running()
    uid = rollout(simulator)
    simulator.report(states={uid: MemberState.DRAINING}, reasons={uid: "maintenance"})
    simulator.reconcile(1)
    return simulator


def rollouts_are_absent() -> JobSimulator:
    simulator = running()
    uid = rollout(simulator)
    for _ in range(2):
        simulator.report(states={uid: MemberState.SUSPECT}, reasons={uid: "silent for 3 s"})
        simulator.reconcile(61)
    return simulator


def rollout_sends_bad_messages() -> JobSimulator:
    simulator = running()
    uid = rollout(simulator)
    reason = "3 bad messages, the last: sample 0: token 151936 is none of 151936"
    for _ in range(2):
        simulator.report(
            states={uid: MemberState.SUSPECT},
            reasons={uid: reason},
            causes={uid: SuspicionCause.BAD_MESSAGES},
        )
        simulator.reconcile(61)
    return simulator


def rollout_never_registers() -> JobSimulator:
    simulator = running()
    for _ in range(2):
        simulator.report(silent=[rollout(simulator)])
        simulator.reconcile(61)
    return simulator


def rollout_on_a_terminating_node() -> JobSimulator:
    simulator = running()
    simulator.nodes = {"node-1": NodeFacts("node-1", (SPOT,))}
    simulator.change(simulator.pods_of("bad-cpu")[0], node="node-1")
    simulator.reconcile(1)
    return simulator


# --- the reference's own pods --------------------------------------------------------------------


def reference_pods_end(number: int) -> Scenario:
    def scenario() -> JobSimulator:
        simulator = running(OWN_REFERENCE)
        for pod in simulator.pods_of("bad-reference")[:number]:
            del simulator.pods[pod.uid]
        simulator.converge(5)
        return simulator

    return scenario


def reference_image_cannot_be_pulled() -> JobSimulator:
    simulator = running(OWN_REFERENCE)
    for pod in simulator.pods_of("bad-reference"):
        simulator.change(pod, ready=False, waiting_reason="ImagePullBackOff")
    simulator.converge(5)
    return simulator


def job_with_reference_pods_is_suspended() -> JobSimulator:
    return suspended_with(OWN_REFERENCE)


def job_with_reference_pods_succeeds() -> JobSimulator:
    return succeeded_with(OWN_REFERENCE)


def lent_pool_has_the_name_of_the_reference_pods() -> JobSimulator:
    simulator = JobSimulator(OWN_REFERENCE)
    simulator.pools["bad-reference"] = lent_pool({"metadata.name": "bad-reference"})
    simulator.converge()
    return simulator


# --- the front -----------------------------------------------------------------------------------


def front_fails(**facts: object) -> Scenario:
    def scenario() -> JobSimulator:
        simulator = running(FRONT)
        (pod,) = simulator.pods_of("bad-front")
        simulator.change(pod, ready=False, running=False, **facts)
        simulator.converge(5)
        return simulator

    return scenario


def front_has_no_rollout() -> JobSimulator:
    simulator = running(FRONT)
    simulator.change(simulator.pods_of("bad-front")[0], ready=False)
    simulator.converge(5)
    return simulator


def job_with_a_front_is_suspended() -> JobSimulator:
    return suspended_with(FRONT)


def job_with_a_front_succeeds() -> JobSimulator:
    return succeeded_with(FRONT)


# --- the sync group -----------------------------------------------------------------------------


def no_weight_sync() -> JobSimulator:
    return running({"spec.weightSync.enabled": False})


def coordinator_is_unreachable() -> JobSimulator:
    simulator = JobSimulator()
    simulator.converge()
    simulator.schedule()
    simulator.run()
    simulator.converge(1)
    return simulator


def coordinator_falls_silent(failure: LinkFailure, detail: str) -> Scenario:
    def scenario() -> JobSimulator:
        simulator = running()
        simulator.link = LinkFacts(False, simulator.now, failure, detail)
        simulator.converge(11)
        simulator.link = None
        simulator.converge(11)
        return simulator

    return scenario


def no_rollout_has_joined() -> JobSimulator:
    simulator = running()
    simulator.report(silent=list(simulator.pods))
    simulator.converge(5)
    return simulator


def sessions_are_rebuilt() -> JobSimulator:
    simulator = running()
    assert simulator.snapshot is not None
    (group,) = simulator.snapshot.groups
    lost = "bad-cpu-2: HeartbeatMissed: silent for 3 s"
    reports = [
        SessionReport(SessionId(1, 1, n), SessionCause.MEMBER_LOST, 2, 0.3, lost, START + n)
        for n in range(2, 7)
    ]
    last = replace(reports[-1], session=SessionId(1, 1, 9), detail="")
    group = replace(group, session=last, sessions=(*reports, last))
    simulator.snapshot = replace(simulator.snapshot, groups=(group,))
    simulator.converge(5)
    return simulator


# --- wrong specs --------------------------------------------------------------------------------


def wrong_spec(changes: Changes, then: Changes | None = None) -> Scenario:
    def scenario() -> JobSimulator:
        if then is None:
            simulator = JobSimulator()
            simulator.edit(changes)
        else:
            simulator = running(changes)
            simulator.edit(then)
        simulator.converge(5)
        return simulator

    return scenario


def many_errors() -> JobSimulator:
    simulator = JobSimulator()
    simulator.edit({"spec.trainer.replicas": 0, "spec.algorithm.settings": {"clipLow": "x"}})
    simulator.converge()
    return simulator


def trainer_is_refused() -> JobSimulator:
    return _trainer_is_refused(
        'StatefulSet.apps "bad-trainer" is invalid: spec.template.spec.containers[0].name: Invalid '
        'value: "Main_Container": a lowercase RFC 1123 label must consist of lower case characters'
    )


def statefulset_of_others_has_the_trainers_name() -> JobSimulator:
    return _trainer_is_refused(NO_CHILD)


def _trainer_is_refused(message: str) -> JobSimulator:
    simulator = JobSimulator()
    plan = simulator.reconcile()
    (body,) = (b for b in plan.applies if b["kind"] == "StatefulSet")
    simulator.refusals["StatefulSet/bad-trainer"] = Refusal(digest(body), message)
    simulator.children.pop("StatefulSet/bad-trainer")
    simulator.converge(5)
    return simulator


def deployment_of_a_lent_pool_is_refused() -> JobSimulator:
    simulator = JobSimulator()
    simulator.pools["lent"] = lent_pool()
    plan = simulator.reconcile()
    (body,) = (b for b in plan.applies if b["metadata"]["name"] == "lent")
    message = 'Deployment.apps "lent" is invalid: spec.template.spec.volumes[0].name: Not found'
    simulator.refusals["Deployment/lent"] = Refusal(digest(body), message)
    simulator.children.pop("Deployment/lent")
    simulator.converge(5)
    return simulator


def pool_of_that_name_serves_another_job() -> JobSimulator:
    simulator = JobSimulator()
    plan = simulator.reconcile()
    (body,) = (b for b in plan.applies if b["kind"] == "RolloutPool")
    message = "spec.jobRef: Invalid value: is immutable"
    simulator.refusals["RolloutPool/bad-cpu"] = Refusal(digest(body), message)
    simulator.pools.clear()
    simulator.reconcile(60)
    return simulator


def pool_has_no_job() -> JobSimulator:
    simulator = JobSimulator()
    simulator.pools["lent"] = lent_pool()
    simulator.job = None
    simulator.converge()
    return simulator


def pool_names_a_group_that_the_job_does_not_have() -> JobSimulator:
    simulator = JobSimulator()
    simulator.pools["lent"] = lent_pool({"spec.syncGroup": "npu"})
    simulator.converge()
    return simulator


def pool_of_a_supervised_job() -> JobSimulator:
    simulator = JobSimulator({**NO_ALGORITHM, "spec.supervised": {}})
    simulator.pools["lent"] = lent_pool()
    simulator.converge()
    return simulator


def ranks_change_with_the_template() -> JobSimulator:
    simulator = running({f"{TRAINER}.resources.limits": {"nvidia.com/gpu": 4}})
    simulator.edit({f"{TRAINER}.resources.limits": {"nvidia.com/gpu": 2}})
    simulator.converge(5)
    return simulator


def pool_name_is_taken() -> JobSimulator:
    simulator = JobSimulator()
    simulator.pools["bad-cpu"] = lent_pool({"metadata.name": "bad-cpu"})
    simulator.converge()
    return simulator


def bounds_contradict_the_live_replicas(bound: str, value: int, live: int) -> Scenario:
    def scenario() -> JobSimulator:
        simulator = running()
        simulator.scale("bad-cpu", live)
        simulator.edit({f"spec.rollouts[0].{bound}": value})
        simulator.converge(5)
        return simulator

    return scenario


def _wrong_specs() -> Iterator[tuple[str, Scenario]]:
    """Each wrong manifest of the integration tests, as far as the planner sees it."""
    for case in (*REFUSED_AT_APPLY, *REPORTED_IN_A_CONDITION):
        # Forbidden changes are refused by the API server alone.
        forbidden = case.then is not None and case.where == "apply"
        in_spec = all(path.startswith("spec") for path in case.changes)
        if case.kind == "RLJob" and not case.before and in_spec and not forbidden:
            yield case.name, wrong_spec(case.changes, case.then)


SCENARIOS: dict[str, Scenario] = {
    function.__name__: function
    for function in (
        starts_and_succeeds,
        lent_pool_follows_the_job,
        training_fails,
        deadline_passes,
        suspended,
        suspended_and_resumed,
        too_few_rollouts_are_left,
        scaled_up_and_down,
        without_rollouts,
        trainer_restarts_too_often,
        trainer_restarts_too_often_unseen,
        trainer_does_not_start,
        coordinator_is_replaced,
        trainer_restarts_by_annotation,
        trainer_is_killed_twice,
        pods_of_a_finished_job_stay,
        rollouts_reject_the_reward,
        quota_refuses_pods,
        quota_refuses_pods_of_front_and_reference,
        front_and_reference_fit_no_node,
        orphaned,
        orphaned_service,
        service_with_another_owner,
        orphans_are_adopted,
        trainer_on_a_terminating_node,
        trainer_on_a_lost_node,
        lent_rollout_fails,
        rollouts_are_lost,
        operator_restarts_and_rollouts_changed,
        too_few_rollouts_in_sync,
        many_rollouts_behind,
        rollout_is_drained,
        rollouts_are_absent,
        rollout_sends_bad_messages,
        rollout_never_registers,
        rollout_on_a_terminating_node,
        no_weight_sync,
        coordinator_is_unreachable,
        network_policies_are_not_enforced,
        no_rollout_has_joined,
        sessions_are_rebuilt,
        many_errors,
        trainer_is_refused,
        statefulset_of_others_has_the_trainers_name,
        deployment_of_a_lent_pool_is_refused,
        pool_of_that_name_serves_another_job,
        pool_has_no_job,
        pool_names_a_group_that_the_job_does_not_have,
        pool_name_is_taken,
        pool_of_a_supervised_job,
        ranks_change_with_the_template,
        reference_image_cannot_be_pulled,
        front_has_no_rollout,
        sessions_keep_ending,
        job_with_a_front_is_suspended,
        job_with_a_front_succeeds,
        job_with_reference_pods_is_suspended,
        job_with_reference_pods_succeeds,
        lent_pool_has_the_name_of_the_reference_pods,
    )
} | {
    "front image cannot be pulled": front_fails(waiting_reason="ImagePullBackOff"),
    "front is in a crash loop": front_fails(exit_code=1, restarts=7),
    "front misses its keys": front_fails(
        phase="Pending",
        mounting_since=START,
        mount_failure='MountVolume.SetUp failed for volume "rollcall-api-keys" : secret "agents" '
        "not found",
    ),
    "a reference pod ends": reference_pods_end(1),
    "all reference pods end": reference_pods_end(2),
    "coordinator cannot be reached": coordinator_falls_silent(
        LinkFailure.UNREACHABLE, "[Errno 111] Connect call failed ('10.0.0.1', 7070)"
    ),
    "coordinator hangs": coordinator_falls_silent(
        LinkFailure.SILENT, "it has sent nothing for 11 s"
    ),
    "coordinator refuses the operator": coordinator_falls_silent(
        LinkFailure.REFUSED, '401 {"error": "bad token"}'
    ),
    "coordinator is of another version": coordinator_falls_silent(
        LinkFailure.INCOMPATIBLE, "its report cannot be read: surprise: unknown field"
    ),
    "coordinator is not believed": coordinator_falls_silent(
        LinkFailure.UNTRUSTED, "certificate verify failed: unable to get local issuer certificate"
    ),
    "coordinator sends too much": coordinator_falls_silent(
        LinkFailure.EXCESSIVE, "it sent more than 10 empty lines a second"
    ),
    "trainer template changes": trainer_template_changes(),
    "trainer template changes with a checkpoint": trainer_template_changes(
        {"spec.trainer.checkpoint": {"everySteps": 5, "volume": {"emptyDir": {}}}}
    ),
    **{
        f"reward function: {kind}": rewards_fail(RewardError(0, kind, value, "my_task.py", 12))
        for kind, value in REWARD_ERRORS.items()
    },
    **{
        f"reward function: {on_error}": rewards_fail(
            RewardError(3, RewardErrorKind.RAISED, "KeyError: 'answer'", "my_task.py", 12), on_error
        )
        for on_error in ("Zero", "Fail")
    },
    **{f"training: {s}": training_gets_nowhere(s, **seen) for s, seen in STANDSTILLS.items()},
    "too many rewards fail": trainer_exits(
        ExitCode.BAD_CONFIG,
        "spec.reward.function: 31 of the last 120 samples have no usable reward, more than "
        "spec.reward.maxErrorShare (0.1) allows; the last: my_task:score raised KeyError: 'answer' "
        "(my_task.py:12), for prompt 17 (tokens 0 4 9 1)",
    ),
    "trainer raises": trainer_exits(1, "ValueError: bad batch (my_task.py:12 in score)"),
    "trainer is fenced": trainer_exits(ExitCode.FENCED),
    "trainer rejects a field": trainer_exits(
        ExitCode.BAD_CONFIG, "spec.model.path: unknown builtin 'x'; correct the name"
    ),
    "trainer rejects its settings": trainer_exits(ExitCode.BAD_CONFIG),
    "trainer is killed for its memory": trainer_exits(
        137, "OOMKilled, it used more memory than its limit", oom_killed=True
    ),
    "trainer runs out of memory": trainer_exits(
        ExitCode.OUT_OF_MEMORY,
        "spec.trainer.engine.config.maxTokensPerMicrobatch: the device's memory does not suffice: "
        "lower it",
    ),
    "rollout is killed for its memory": rollout_fails(
        exit_code=137,
        exit_message="OOMKilled, it used more memory than its limit",
        oom_killed=True,
        restarts=2,
    ),
    "trainer exit code is mapped to Fail": trainer_exits(
        42, changes={"spec.failurePolicy.rules": [{"exitCodes": [42], "action": "Fail"}]}
    ),
    "rollout image cannot be pulled": rollout_fails(
        waiting_reason="ImagePullBackOff",
        waiting_message='Back-off pulling image "x": ErrImagePull: manifest unknown',
    ),
    "rollout volume cannot be mounted": rollout_fails(
        phase="Pending",
        mounting_since=START,
        mount_failure='MountVolume.SetUp failed for volume "keys" : secret "hub" not found',
    ),
    "rollout container cannot be created": rollout_fails(
        waiting_reason="CreateContainerConfigError", waiting_message='secret "hub" not found'
    ),
    "rollout exits once": rollout_fails(
        exit_code=1, restarts=1, exit_message="ValueError: no reward (my_task.py:12 in score)"
    ),
    "rollout is in a crash loop": rollout_fails(exit_code=137, restarts=7),
    "rollout rejects a field": rollout_fails(
        exit_code=ExitCode.BAD_CONFIG,
        exit_message="spec.reward.function: no module named 'my_task'; correct it",
    ),
    "rollout rejects its settings": rollout_fails(exit_code=ExitCode.BAD_CONFIG),
    "a mount hides the token": wrong_spec(
        {f"{TRAINER}.volumeMounts": [{"name": "own", "mountPath": TOKEN_PATH}]}
    ),
    "maxReplicas is below the live replicas": bounds_contradict_the_live_replicas(
        "maxReplicas", 3, 5
    ),
    "minReplicas is above the live replicas": bounds_contradict_the_live_replicas(
        "minReplicas", 2, 1
    ),
    **dict(_wrong_specs()),
}
