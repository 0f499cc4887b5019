"""A job in progress, as lines that a person can follow; the demo and the tests share it."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.e2e.kubectl import Kubectl, KubectlError, is_ready, name_of


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


def follow(
    kubectl: Kubectl, job: str, *, until: Callable[[Sight], bool], seconds: float,
    say: Callable[[str], None] = print,
) -> Sight:  # fmt: skip
    """Print a line when something changed, until `until` holds; TimeoutError when it never does."""
    deadline, last, epochs = time.monotonic() + seconds, "", 0
    while time.monotonic() < deadline:
        sight = look(kubectl, job)
        for entry in sight.history:
            if entry["epoch"] > epochs:
                epochs = entry["epoch"]
                why = f"{entry['cause']}: {entry.get('message', '')}".rstrip(": ")
                say(f"  epoch {epochs} opened, {why}")
        if sight.line() != last:
            last = sight.line()
            say(last)
        if until(sight):
            return sight
        if sight.phase == "Failed":
            raise AssertionError(f"{job} failed: {describe(sight)}")
        time.sleep(1)
    raise TimeoutError(f"{job}: not within {seconds:.0f} s; {describe(sight)}")


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
