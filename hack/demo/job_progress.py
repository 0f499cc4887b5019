"""A job's progress, read from its status and its pods' metrics, and printed as lines for people."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from hack.cluster.errors import KubectlError
from hack.cluster.kubectl import is_ready, name_of


class NoAnswerError(Exception):
    """A pod does not answer now."""


class ReadsJobs(Protocol):
    """Where a job runs: kubectl, or a run on this machine."""

    def job(self, name: str) -> dict[str, Any]:
        """The RLJob."""

    def rollouts(self, job: str) -> list[dict[str, Any]]:
        """Pods of its rollouts."""

    def metrics(self, pod: str) -> dict[str, float]:
        """Of a pod, by name; KubectlError or NoAnswerError while it does not answer."""


@dataclass(slots=True)
class JobProgress:
    """A job at one moment: its status, and the metrics of its trainer and rollouts."""

    phase: str = "Pending"
    step: int = 0
    max_steps: int = 0
    version: int = -1
    epoch: int = 0
    members: int = 0
    ready: int = 0
    rollouts: dict[str, dict[str, float]] = field(default_factory=dict)  # pod to its metrics
    history: list[dict[str, Any]] = field(default_factory=list)
    conditions: list[dict[str, Any]] = field(default_factory=list)
    reported_reward: float | None = None  # in the job's status

    @property
    def rewards(self) -> dict[str, float]:
        """Mean reward of the samples that each rollout generated itself."""
        found = {pod: m.get("rollcall_rollout_reward") for pod, m in self.rollouts.items()}
        # Not a number before the first sample was generated.
        return {pod: r for pod, r in found.items() if r is not None and not math.isnan(r)}

    def all_reach(self, reward: float, *, rollouts: int) -> bool:
        """Whether so many rollouts sampled, each with this mean reward or more."""
        return len(self.rewards) == rollouts and min(self.rewards.values()) >= reward

    def epoch_causes(self) -> set[str]:
        """What the epochs in the history were opened for."""
        return {entry["cause"] for entry in self.history}

    def line(self) -> str:
        """One line for a terminal: phase, step, version, mean reward, ready rollouts, epoch."""
        rewards = list(self.rewards.values())
        if not rewards and self.reported_reward is not None:
            rewards = [self.reported_reward]
        reward = f"{sum(rewards) / len(rewards):.2f}" if rewards else "  - "
        most = f"/{self.max_steps}" if self.max_steps else ""
        return (
            f"{self.phase:<10} step {self.step:>3}{most}  version {self.version:>3}  "
            f"reward {reward}  rollouts {self.ready}/{len(self.rollouts)} ready  "
            f"epoch {self.epoch}"
        )


def read_progress(place: ReadsJobs, job: str) -> JobProgress:
    """Read status and metrics once. A pod that does not answer is listed without metrics."""
    found = place.job(job)
    status = found.get("status", {})
    groups = status.get("syncGroups") or [{}]
    seen = JobProgress(
        phase=status.get("phase", "Pending"),
        max_steps=(found["spec"].get("algorithm") or {}).get("maxSteps", 0),
        epoch=groups[0].get("epoch", 0),
        members=groups[0].get("members", 0),
        history=groups[0].get("history", []),
        conditions=status.get("conditions", []),
    )
    # The trainer first: on a busy machine it makes steps before the last rollout is read.
    trainer = _metrics(place, f"{job}-trainer-0")
    progress = status.get("progress", {})
    seen.step = int(trainer.get("rollcall_step", progress.get("step", 0)))
    reward = progress.get("rolloutReward")
    seen.reported_reward = None if reward is None else float(reward)
    seen.version = int(trainer.get("rollcall_weight_version", progress.get("weightVersion", -1)))
    for pod in place.rollouts(job):
        seen.ready += is_ready(pod)
        seen.rollouts[name_of(pod)] = _metrics(place, name_of(pod))
    return seen


@dataclass(slots=True)
class Pace:
    """How fast steps follow each other since the second one, and when the last will be done."""

    began: tuple[float, int] | None = None  # seconds, step

    def words(self, seen: JobProgress, *, now: float) -> str:
        """Such as `, 5.2 steps/min, 4 min left`; nothing before there is a pace."""
        if seen.phase != "Running" or seen.step < 1 or not seen.max_steps:
            return ""
        began, first = self.began = self.began or (now, seen.step)
        if seen.step <= first or now <= began:
            return ""
        per_second = (seen.step - first) / (now - began)
        left = (seen.max_steps - seen.step) / per_second
        time_left = f"{left / 60:.0f} min" if left >= 90 else f"{left:.0f} s"
        return f"  {per_second * 60:.1f} steps/min, {time_left} left"


class JobWatcher:
    """Prints what changes in one job: each epoch once, each new progress line once.

    `look` gets all that is read.
    """

    def __init__(
        self,
        place: ReadsJobs,
        job: str,
        *,
        say: Callable[[str], None] = print,
        look: Callable[[JobProgress], None] | None = None,
    ) -> None:
        self._place, self._job, self._say = place, job, say
        self._look = look
        self._epoch = 0
        self._line = ""
        self._pace = Pace()

    def until(self, happened: Callable[[JobProgress], bool], *, seconds: float) -> JobProgress:
        """Read the job's progress once a second until `happened(progress)` is true; returns it.

        Raises:
            TimeoutError: it was not true within `seconds`.
            AssertionError: the job failed.
        """
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            seen = read_progress(self._place, self._job)
            if self._look is not None:
                self._look(seen)
            self._report(seen, self._pace.words(seen, now=time.monotonic()))
            if happened(seen):
                return seen
            if seen.phase == "Failed":
                raise AssertionError(f"{self._job} failed: {describe(seen)}")
            time.sleep(1)
        raise TimeoutError(f"{self._job}: not within {seconds:.0f} s; {describe(seen)}")

    def _report(self, seen: JobProgress, pace: str) -> None:
        for entry in seen.history:
            if entry["epoch"] > self._epoch:
                self._epoch = entry["epoch"]
                why = f"{entry['cause']}: {entry.get('message', '')}".rstrip(": ")
                self._say(f"  epoch {self._epoch} opened, {why}")
        if seen.line() != self._line:
            self._line = seen.line()
            self._say(f"{self._line}{pace}")


def describe(seen: JobProgress) -> str:
    """The conditions that are not as they should be, for an error message."""
    bad = [
        f"{c['type']}={c['status']} {c['reason']}: {c['message']}"
        for c in seen.conditions
        if c["status"] != "True" or c["type"] == "Failed"
    ]
    return f"last seen: {seen.line()}; {'; '.join(bad)}"


def _metrics(place: ReadsJobs, pod: str) -> dict[str, float]:
    try:
        return place.metrics(pod)
    except (KubectlError, NoAnswerError):
        return {}
