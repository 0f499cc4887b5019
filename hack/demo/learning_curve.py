"""The reward of rollouts over a job's steps, with its epochs, as an SVG."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from matplotlib.figure import Figure

if TYPE_CHECKING:
    from pathlib import Path

    from hack.demo.job_progress import JobProgress


@dataclass(slots=True)
class LearningCurve:
    """What was seen of a job: `rewards` of each pod as (step, mean), `epochs` as (step, cause)."""

    rewards: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    epochs: list[tuple[int, str]] = field(default_factory=list)
    _epoch: int = 0

    def add(self, seen: JobProgress) -> None:
        """Take what is new."""
        for pod, reward in seen.rewards.items():
            points = self.rewards.setdefault(pod, [])
            if not points or points[-1][0] < seen.step:
                points.append((seen.step, reward))
        for entry in seen.history:
            if entry["epoch"] > self._epoch:
                self._epoch = entry["epoch"]
                self.epochs.append((seen.step, str(entry["cause"])))

    def draw(self, path: Path, *, title: str) -> None:
        """Write the chart; OSError if it cannot be written."""
        figure = Figure(figsize=(8, 3.6), layout="constrained")
        axes = figure.subplots()
        for pod, points in self.rewards.items():
            axes.plot(*zip(*points, strict=True), label=pod, linewidth=1.6)
        grey = "#7f7f7f"
        causes: dict[int, list[str]] = {}
        for step, cause in self.epochs:
            causes.setdefault(step, []).append(cause)
        for step, found in causes.items():
            axes.axvline(step, color=grey, linewidth=0.8, linestyle=":")
            axes.annotate(
                ", ".join(found), (step, 0.02), rotation=90, fontsize=7, color=grey, ha="right"
            )
        axes.set(ylim=(0, 1.05), xlabel="step", title=title)
        axes.set_ylabel("mean reward of a rollout's last 256 samples")
        axes.legend(fontsize=7, loc="lower right")
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, format="svg", metadata={"Date": None})
