"""When a job has succeeded or failed, and how often its trainer may restart."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from rollcall_operator.api import labels
from rollcall_operator.api.conditions import JobCondition, Reason
from rollcall_operator.api.rljob import FailurePolicy, RLJobSpec
from rollcall_operator.api.status import RLJobStatus, TrainerStatus
from rollcall_operator.api.training import TrainerSpec
from rollcall_operator.plan import mounted_code
from rollcall_operator.plan.external_trainer import uncalled_at_end
from rollcall_operator.plan.model import Manifest, PodFacts
from rollcall_operator.plan.timestamps import from_time, to_micro_time
from rollcall_protocol.pod_contract import ExitCode
from rollcall_protocol.wire.job_snapshot import JobSnapshot


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """How a job ended: `condition` is Succeeded or Failed."""

    condition: JobCondition
    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class TrainerRestarts:
    """Restarts of the trainer; see api.status.TrainerStatus. `last` is Unix seconds, None if never;
    `step` the training's at the last restart, `progressed` whether it was further than at the one
    before.

    A gang restarts together, so all its pods count as one.
    """

    counted: int = 0
    total: int = 0
    of_pod: int = 0
    last: float | None = None
    step: int = 0
    progressed: bool = False

    @classmethod
    def read(cls, trainer: TrainerStatus | None) -> Self:
        """The restarts that `status.trainer` records; none without it."""
        if trainer is None:
            return cls()
        last = trainer.last_restart_time
        return cls(
            counted=trainer.restarts,
            total=trainer.total_restarts,
            of_pod=trainer.pod_restarts,
            last=from_time(last) if last else None,
            step=trainer.restart_step,
            progressed=trainer.progressed,
        )

    def as_status(self, *, replicas: int, ready: int) -> TrainerStatus:
        """`status.trainer` with these restarts."""
        return TrainerStatus(
            replicas=replicas,
            ready=ready,
            restarts=self.counted,
            total_restarts=self.total,
            pod_restarts=self.of_pod,
            last_restart_time=None if self.last is None else to_micro_time(self.last),
            restart_step=self.step,
            progressed=self.progressed,
        )


def recorded_outcome(status: RLJobStatus) -> JobOutcome | None:
    """The outcome that status holds already; it never changes."""
    for condition in status.conditions:
        if condition.type in {JobCondition.SUCCEEDED, JobCondition.FAILED}:
            kind = JobCondition(condition.type)
            return JobOutcome(kind, Reason(condition.reason), condition.message)
    return None


def count_restarts(
    before: TrainerRestarts,
    trainers: Sequence[PodFacts],
    policy: FailurePolicy,
    now: float,
    step: int = 0,
) -> TrainerRestarts:
    """Add the restarts since `before`: those of the rank that restarted most. One that waits in the
    kubelet's back-off has restarted: the pod may be replaced before the kubelet counts it.

    A recreated pod counts its containers' restarts from zero, and so does the result. `step` is
    the last one that the trainer reported.
    """
    workers = [pod for pod in trainers if not pod.init]
    worst = max(workers, key=_ends, default=None)
    of_pod = _ends(worst) if worst else 0
    more = max(0, of_pod - before.of_pod)
    if worst is None or more == 0:
        return replace(before, of_pod=of_pod)
    stable = before.last is not None and now - before.last >= policy.stability_window_seconds
    counted = 0 if stable else before.counted
    if _action(worst.exit_code, policy) != "Ignore":
        counted += more
    return TrainerRestarts(
        counted, before.total + more, of_pod, now, step, progressed=step > before.step
    )


def _ends(pod: PodFacts) -> int:
    """How often the worker's container has ended in this pod, at least."""
    return pod.restarts + pod.in_back_off


def _action(exit_code: int | None, policy: FailurePolicy) -> str:
    if exit_code == ExitCode.FENCED:
        return "Ignore"  # another coordinator took over: no failure
    for rule in policy.rules:
        if exit_code in rule.exit_codes:
            return rule.action
    return "Count"


def decide_outcome(
    spec: RLJobSpec,
    *,
    trainers: Sequence[PodFacts],
    rollouts: Sequence[PodFacts],
    snapshot: JobSnapshot | None,
    restarts: TrainerRestarts,
    running_for: float,
    step: int,
) -> JobOutcome | None:
    """The job's outcome, None while it goes on. `running_for`: seconds since its start time;
    `step`: the last one that its trainer reported.
    """
    if snapshot and snapshot.finished:
        done = snapshot.finished
        if not done.error:
            message = f"training completed after {done.step} steps"
            return JobOutcome(JobCondition.SUCCEEDED, Reason.COMPLETED, message)
        return _failed(
            Reason.TRAINING_FAILED,
            f"training failed at step {done.step}: {done.error}. Fix the cause, then delete and "
            "recreate the RLJob",
        )
    for pod in trainers:
        outcome = _exit_outcome(pod, spec)
        if outcome:
            return outcome
    most = spec.failure_policy.max_restarts
    if step == 0 and _all_reject(rollouts, most):
        why = _rejected(rollouts[0])
        return _failed(Reason.BAD_CONFIG, f"{why}. {mounted_code.cure(why, _template(spec))}")
    if restarts.counted > most:
        why = _last_exit(trainers, spec.trainer)
        return _failed(
            Reason.BACKOFF_LIMIT_EXCEEDED,
            f"the trainer restarted {restarts.counted} times, more often than "
            f"spec.failurePolicy.maxRestarts ({most}) allows{why}. Fix the cause, then delete and "
            "recreate the RLJob",
        )
    limit = spec.active_deadline_seconds
    if limit is not None and running_for >= limit:
        return _failed(
            Reason.DEADLINE_EXCEEDED,
            f"training was stopped: it took longer than spec.activeDeadlineSeconds ({limit}) "
            "allows. Raise the limit, then delete and recreate the RLJob",
        )
    return None


def _last_exit(trainers: Sequence[PodFacts], trainer: TrainerSpec) -> str:
    """Of one that had too little memory, if there is one: the others end because it is gone."""
    ended = [pod for pod in trainers if pod.exit_code is not None]
    last = next((pod for pod in ended if ran_out_of_memory(pod)), next(iter(ended), None))
    if last is None:
        return ""
    advice = memory_advice(last, trainer) if last.oom_killed else uncalled_at_end(trainer, last)
    return f". Last exit of pod {last.name}: {describe_exit(last)}" + (advice and f"; {advice}")


def _all_reject(rollouts: Sequence[PodFacts], most: int) -> bool:
    """Whether every rollout has rejected its settings more than `most` times."""
    return bool(rollouts) and all(
        pod.in_back_off
        and not pod.init
        and pod.exit_code == ExitCode.BAD_CONFIG
        and _ends(pod) > most
        for pod in rollouts
    )


def _rejected(pod: PodFacts) -> str:
    return pod.exit_message or f"{pod.role} pod {pod.name} rejected its settings"


def _template(spec: RLJobSpec) -> Manifest:
    """Of the rollouts, whose pools a job may leave to others."""
    return next((pool.template for pool in spec.rollouts or ()), spec.trainer.template)


def _exit_outcome(pod: PodFacts, spec: RLJobSpec) -> JobOutcome | None:
    if pod.init or pod.exit_code is None:
        return None
    if pod.exit_code == ExitCode.BAD_CONFIG:
        why = _rejected(pod)
        cure = mounted_code.cure(why, spec.trainer.template)
        return _failed(Reason.BAD_CONFIG, f"{why}. {cure}")
    if _action(pod.exit_code, spec.failure_policy) == "Fail":
        return _failed(
            Reason.EXIT_CODE_RULE,
            f"trainer pod {pod.name} ended with {describe_exit(pod)}. spec.failurePolicy.rules "
            "maps this exit code to Fail",
        )
    return None


def describe_exit(pod: PodFacts) -> str:
    """Exit code of a container and the summary of its termination message."""
    why = pod.exit_message
    if not why and pod.exit_code == ExitCode.FENCED:
        why = "another trainer pod has taken over"
    return f"exit code {pod.exit_code}" + (f": {why}" if why else "")


def ran_out_of_memory(pod: PodFacts) -> bool:
    """Whether a container ended because a device or the pod had too little memory."""
    return pod.oom_killed or (pod.exit_code == ExitCode.OUT_OF_MEMORY and not pod.init)


def memory_advice(pod: PodFacts, trainer: TrainerSpec | None = None) -> str:
    """What to do about a container that the kernel killed for the memory that it used.

    `trainer` is the spec of a trainer's pod.
    """
    if pod.init:
        return "raise the limit"
    if trainer is not None and trainer.external:
        return (
            "raise the limit (resources.limits.memory in spec.trainer.template), or have its "
            "program use less"
        )
    if pod.role == labels.TRAINER:
        return (
            "raise the limit (resources.limits.memory in spec.trainer.template), or change in "
            "spec.trainer.engine.config what needs memory: lower maxTokensPerMicrobatch, set "
            "activationCheckpointing: full and offload: none"
        )
    if pod.role == labels.REFERENCE:
        return (
            "raise the limit (resources.limits.memory in spec.reference.template), or lower "
            "maxTokensPerMicrobatch in spec.trainer.engine.config"
        )
    return "raise the limit, or lower engine.config.concurrency of the pool"


def _failed(reason: Reason, message: str) -> JobOutcome:
    return JobOutcome(JobCondition.FAILED, reason, message)
