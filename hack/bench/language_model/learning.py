"""What a rollout's own samples were worth while its job trained."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass
from typing import Any

from rollcall_runtime.worker.telemetry import REWARD_WINDOW

GOALS = {"first-letter": 0.4, "chain-sum": 0.2}  # of the rise of the mean reward, by task
STAYS = 0.1  # how far it may move without weight sync


@dataclass(frozen=True, slots=True)
class Look:
    """A rollout's metrics at one moment of the job.

    `seconds` since the rollout served, `step` of the trainer, `version` that the coordinator
    last had the rollout serve, which keeps its first weights without weight sync; `samples` so far,
    and the mean `reward` of the last REWARD_WINDOW of them, or of all while there are fewer.
    """

    seconds: float
    step: int
    version: int
    samples: int
    reward: float


@dataclass(frozen=True, slots=True)
class Learning:
    """One run, with a look after each change.

    `mismatch_kl` (nats a token) and `step_seconds` are of each step for which the trainer has them.
    """

    task: str
    seed: int
    sync: bool
    looks: tuple[Look, ...]
    mismatch_kl: tuple[float, ...]
    step_seconds: tuple[float, ...]

    @property
    def start(self) -> float:
        """Mean reward of the samples that came before the first update.

        Without weight sync nothing changes, so it is that of the first REWARD_WINDOW.
        """
        first = self.looks[0].version
        before = [
            look.reward
            for look in self.looks
            if (look.version == first if self.sync else look.samples <= REWARD_WINDOW)
        ]
        return before[-1]

    @property
    def end(self) -> float:
        """Mean reward of the last REWARD_WINDOW samples."""
        return self.looks[-1].reward

    @property
    def as_it_should(self) -> bool:
        """Whether the reward rose as the goal says, or stayed where it was without weight sync."""
        moved = self.end - self.start
        return moved >= GOALS[self.task] if self.sync else abs(moved) <= STAYS

    def figures(self) -> dict[str, Any]:
        """One line of a table."""
        last = self.looks[-1]
        return {
            "start": round(self.start, 3),
            "end": round(last.reward, 3),
            "moved": round(last.reward - self.start, 3),
            "as_it_should": self.as_it_should,
            "steps": last.step,
            "samples": last.samples,
            "seconds": round(last.seconds),
            "step_seconds": _spread(self.step_seconds),
            "mismatch_kl": _spread(self.mismatch_kl),
        }


def verdict(runs: list[Learning]) -> dict[str, Any]:
    """All runs with their looks, and whether each went as it should."""
    return {
        "as_it_should": all(run.as_it_should for run in runs),
        "runs": [
            {"task": run.task, "seed": run.seed, "sync": run.sync, **run.figures()}
            | {"looks": [list(asdict(look).values()) for look in run.looks]}
            for run in runs
        ],
    }


def _spread(values: tuple[float, ...]) -> dict[str, float]:
    if not values:
        return {}
    median, most = statistics.median(values), max(values)
    return {"median": float(f"{median:.3g}"), "max": float(f"{most:.3g}")}
