"""How a job ends, and how often its trainer may restart."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollcall_operator.api.conditions import JobCondition, Reason
from rollcall_operator.api.rljob import FailurePolicy, RLJobSpec
from rollcall_operator.plan.model import PodFacts
from rollcall_operator.plan.timestamps import from_time, to_micro_time
from rollcall_protocol.env import ExitCode
from rollcall_protocol.wire.job_snapshot import JobSnapshot


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """The end of a job: `condition` is Succeeded or Failed."""

    condition: JobCondition
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class TrainerRestarts:
    """TrainerRestarts of the gang; see status.TrainerStatus. `last` is Unix time, None if never."""

    counted: int = 0
    total: int = 0
    of_pod: int = 0
    last: float | None = None

    @classmethod
    def read(cls, trainer: Mapping[str, Any]) -> "TrainerRestarts":
        """From `status.trainer`."""
        last = trainer.get("lastRestartTime")
        return cls(
            counted=trainer.get("restarts", 0),
            total=trainer.get("totalRestarts", 0),
            of_pod=trainer.get("podRestarts", 0),
            last=from_time(last) if last else None,
        )

    def as_status(self) -> dict[str, Any]:
        """The part of `status.trainer` about restarts."""
        out: dict[str, Any] = {
            "restarts": self.counted,
            "totalRestarts": self.total,
            "podRestarts": self.of_pod,
        }
        return out if self.last is None else {**out, "lastRestartTime": to_micro_time(self.last)}


def recorded_outcome(status: Mapping[str, Any]) -> JobOutcome | None:
    """The end that is in status already: it never changes."""
    for condition in status.get("conditions") or ():
        if condition["type"] in {JobCondition.SUCCEEDED, JobCondition.FAILED}:
            kind = JobCondition(condition["type"])
            return JobOutcome(kind, condition["reason"], condition["message"])
    return None


def count_restarts(
    before: TrainerRestarts, trainers: Sequence[PodFacts], policy: FailurePolicy, now: float
) -> TrainerRestarts:
    """Add what happened since. A gang restarts together, so the rank that restarted most counts.

    A pod that was made again counts its containers' restarts from zero, and so do we.
    """
    workers = [pod for pod in trainers if not pod.init]
    worst = max(workers, key=lambda pod: pod.restarts, default=None)
    of_pod = worst.restarts if worst else 0
    more = max(0, of_pod - before.of_pod)
    if worst is None or more == 0:
        return TrainerRestarts(before.counted, before.total, of_pod, before.last)
    stable = before.last is not None and now - before.last >= policy.stability_window_seconds
    counted = 0 if stable else before.counted
    if _action(worst.exit_code, policy) != "Ignore":
        counted += more
    return TrainerRestarts(counted, before.total + more, of_pod, now)


def _action(exit_code: int | None, policy: FailurePolicy) -> str:
    if exit_code == ExitCode.FENCED:
        return "Ignore"  # another coordinator took over; nothing failed
    for rule in policy.rules:
        if exit_code in rule.exit_codes:
            return rule.action
    return "Count"


def assess(
    spec: RLJobSpec,
    *,
    trainers: Sequence[PodFacts],
    snapshot: JobSnapshot | None,
    restarts: TrainerRestarts,
    running_for: float,
) -> JobOutcome | None:
    """The end of the job if it has come. `running_for`: seconds since its start time."""
    if snapshot and snapshot.finished:
        done = snapshot.finished
        if not done.error:
            message = f"trained {done.step} steps"
            return JobOutcome(JobCondition.SUCCEEDED, Reason.COMPLETED, message)
        return _failed(Reason.TRAINING_FAILED, f"at step {done.step}: {done.error}")
    for pod in trainers:
        outcome = _exit_outcome(pod, spec.failure_policy)
        if outcome:
            return outcome
    most = spec.failure_policy.max_restarts
    if restarts.counted > most:
        last = next((pod for pod in trainers if pod.exit_code is not None), None)
        why = f", last with {describe_exit(last)}" if last else ""
        return _failed(
            Reason.BACKOFF_LIMIT_EXCEEDED,
            f"the trainer restarted {restarts.counted} times{why}; see its log, or raise "
            f"spec.failurePolicy.maxRestarts ({most})",
        )
    limit = spec.active_deadline_seconds
    if limit is not None and running_for >= limit:
        return _failed(
            Reason.DEADLINE_EXCEEDED, f"not done after spec.activeDeadlineSeconds ({limit})"
        )
    return None


def _exit_outcome(pod: PodFacts, policy: FailurePolicy) -> JobOutcome | None:
    if pod.init or pod.exit_code is None:
        return None
    if pod.exit_code == ExitCode.BAD_CONFIG:
        last_words = pod.exit_message or "the trainer refuses its settings"
        return _failed(Reason.BAD_CONFIG, f"{last_words}; correct the spec and make the job again")
    if _action(pod.exit_code, policy) == "Fail":
        return _failed(
            Reason.EXIT_CODE_RULE,
            f"trainer pod {pod.name} ended with {describe_exit(pod)}, for which "
            "spec.failurePolicy.rules says Fail",
        )
    return None


def describe_exit(pod: PodFacts) -> str:
    """Exit code and the last words of a container."""
    last_words = f": {pod.exit_message}" if pod.exit_message else ""
    return f"exit code {pod.exit_code}{last_words}"


def _failed(reason: Reason, message: str) -> JobOutcome:
    return JobOutcome(JobCondition.FAILED, reason, message)
