"""A job in progress, as lines that a person can follow; the demo and the tests share it."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hack.cluster.kubectl import Kubectl, KubectlError, is_ready, name_of


@dataclass(slots=True)
class Sight:
    """One look at a job: status, and what trainer and rollouts say themselves."""

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
    trouble: str = ""

    @property
    def rewards(self) -> dict[str, float]:
        """Mean reward of the samples that each rollout drew itself."""
        found = {pod: m.get("rollcall_rollout_reward") for pod, m in self.rollouts.items()}
        # Not a number before the first sample was drawn.
        return {pod: r for pod, r in found.items() if r is not None and not math.isnan(r)}

    def line(self) -> str:
        """For a person."""
        rewards = self.rewards.values()
        reward = f"{sum(rewards) / len(rewards):.2f}" if rewards else "  - "
        return (
            f"{self.phase:<10} step {self.step:>3}/{self.max_steps}  version {self.version:>3}  "
            f"reward {reward}  rollouts {self.ready}/{len(self.rollouts)} ready  "
            f"epoch {self.epoch}"
        )


def look(kubectl: Kubectl, job: str) -> Sight:
    """Look once. Pods that do not answer are there without figures."""
    found = kubectl.get("rljob", job)
    status = found.get("status", {})
    groups = status.get("syncGroups") or [{}]
    sight = Sight(
        phase=status.get("phase", "Pending"),
        max_steps=found["spec"]["algorithm"]["maxSteps"],
        epoch=groups[0].get("epoch", 0),
        members=groups[0].get("members", 0),
        history=groups[0].get("history", []),
        conditions=status.get("conditions", []),
    )
    for pod in kubectl.rollouts(job):
        sight.ready += is_ready(pod)
        sight.rollouts[name_of(pod)] = _metrics(kubectl, name_of(pod))
    trainer = _metrics(kubectl, f"{job}-trainer-0")
    progress = status.get("progress", {})
    sight.step = int(trainer.get("rollcall_step", progress.get("step", 0)))
    sight.version = int(trainer.get("rollcall_weight_version", progress.get("weightVersion", -1)))
    return sight


class Follower:
    """Watches one job and says what changed; epochs are told once."""

    def __init__(self, kubectl: Kubectl, job: str, *, say: Callable[[str], None] = print) -> None:
        self._kubectl, self._job, self._say = kubectl, job, say
        self._epoch = 0
        self._line = ""

    def until(self, happened: Callable[[Sight], bool], *, seconds: float) -> Sight:
        """Look until it `happened`. TimeoutError when it never does, AssertionError on failure."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            sight = look(self._kubectl, self._job)
            self._tell(sight)
            if happened(sight):
                return sight
            if sight.phase == "Failed":
                raise AssertionError(f"{self._job} failed: {describe(sight)}")
            time.sleep(1)
        raise TimeoutError(f"{self._job}: not within {seconds:.0f} s; {describe(sight)}")

    def _tell(self, sight: Sight) -> None:
        for entry in sight.history:
            if entry["epoch"] > self._epoch:
                self._epoch = entry["epoch"]
                why = f"{entry['cause']}: {entry.get('message', '')}".rstrip(": ")
                self._say(f"  epoch {self._epoch} opened, {why}")
        if sight.line() != self._line:
            self._line = sight.line()
            self._say(self._line)


def describe(sight: Sight) -> str:
    """The conditions that are not as they should be, for an error message."""
    bad = [
        f"{c['type']}={c['status']} {c['reason']}: {c['message']}"
        for c in sight.conditions
        if c["status"] != "True" or c["type"] == "Failed"
    ]
    return f"last seen: {sight.line()}; {'; '.join(bad)}"


def _metrics(kubectl: Kubectl, pod: str) -> dict[str, float]:
    try:
        return kubectl.metrics(pod)
    except KubectlError:
        return {}
