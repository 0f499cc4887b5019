"""What became of an attack, and whether that is as promised."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hack.attacks.attack import Attack
    from hack.attacks.worker_vitals import WorkerMemory

MOST_MEMORY = 1.25  # times what a worker used before


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackOutcome:
    """What was observed.

    Attributes:
        problem: why the attack was not refused; empty if it was.
        counted: by how much the kinds of refusals grew that the attack promises.
        steps_lost_seconds: how long training would have taken for the steps that it did not do.
        worker_exits: workers whose process is another one, or none.
        peaks: memory of each worker in MiB, its largest during the attack and before it.
    """

    attack: Attack
    problem: str
    counted: float
    steps_lost_seconds: float
    worker_exits: int
    peaks: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    @property
    def peak_mib(self) -> float:
        """The largest peak of a worker."""
        return max((peak for peak, _ in self.peaks.values()), default=0.0)

    @property
    def peak_share(self) -> float:
        """The largest peak of a worker, as a multiple of what it used before."""
        return max((peak / before for peak, before in self.peaks.values()), default=0.0)

    def failures(self) -> list[str]:
        """What is not as promised."""
        found = [self.problem] if self.problem else []
        if self.attack.counted and not self.counted:
            found.append(f"nothing was counted as {', '.join(self.attack.counted)}")
        if self.worker_exits:
            found.append(f"{self.worker_exits} workers ended")
        if self.peak_share > MOST_MEMORY:
            found.append(f"a worker used {self.peak_share:.2f} of its memory before")
        return found

    def row(self) -> dict[str, Any]:
        """As the last line of `make attacks` has it."""
        return {
            "refused": not self.problem,
            "counted": int(self.counted),
            "steps_lost_seconds": round(self.steps_lost_seconds, 2),
            "peak_mib": round(self.peak_mib, 1),
            "peak_share": round(self.peak_share, 3),
            "worker_exits": self.worker_exits,
        }


def steps_lost(*, seconds: float, steps: int, steps_a_second: float) -> float:
    """Seconds of training that an attack cost, at the rate of before; at least 0."""
    return max(0.0, seconds - steps / steps_a_second) if steps_a_second else 0.0


def grown(before: Mapping[str, float], after: Mapping[str, float], kinds: Sequence[str]) -> float:
    """By how much the counters of these kinds grew together."""
    return sum(after.get(kind, 0.0) - before.get(kind, 0.0) for kind in kinds)


def peaks(
    before: Mapping[str, WorkerMemory], after: Mapping[str, WorkerMemory]
) -> dict[str, tuple[float, float]]:
    """The peak of each worker, and what it used `before` any attack."""
    return {name: (after[name].peak, before[name].peak) for name in after if name in before}
