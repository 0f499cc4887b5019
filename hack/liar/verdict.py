"""What was seen of a job with a liar, and what must hold of it: pure functions."""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hack.liar.lying_worker import SOFT, LieKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

LEARNED = 0.9
OUT_SECONDS = 10.0


@dataclass(slots=True)
class LiarLife:
    """One liar, until it was excluded. Times are seconds since the epoch.

    `lied` is the time of its first lie that excludes it, `paused` for how long the
    trainer was down between that and `out`; `lies` counts them by kind, `answers` are those to
    its completions: lease, whether the completion was a lie, and the outcome.
    """

    kind: LieKind
    cause: str = ""
    lied: float | None = None
    out: float | None = None
    paused: float = 0.0
    lies: dict[str, int] = field(default_factory=dict)
    answers: list[tuple[str, bool, str]] = field(default_factory=list)

    @property
    def seconds(self) -> float | None:
        """From its first lie of that kind until it was out; None while it is not."""
        if self.lied is None or self.out is None:
            return None
        return max(0.0, self.out - self.lied - self.paused)

    def read(self, lines: Sequence[str]) -> None:
        """Take in what it recorded."""
        for line in lines:
            found = json.loads(line)
            if found["what"] == "answer":
                self.answers.append((found["lease"], found["false"], found["outcome"]))
                continue
            kind = LieKind(found["kind"])
            self.lies[kind] = self.lies.get(kind, 0) + 1
            if kind not in SOFT and self.lied is None:
                self.lied = found["time"]


@dataclass(frozen=True, slots=True)
class LiarHistory:
    """Everything that the verdict is about.

    `rewards` are the honest rollouts' means of their own samples at the end, `trained` the lowest
    and highest reward of a sample that was trained on, `distrusted` honest pods that were excluded
    for good.
    """

    lives: Sequence[LiarLife]
    rewards: Mapping[str, float]
    trained: tuple[float, float]
    distrusted: Sequence[str]
    balanced: bool
    weights_problem: str
    tracebacks: Sequence[str]


def violations(history: LiarHistory) -> list[str]:
    """What does not hold, in words."""
    return [found for check in _CHECKS for found in check(history)]


def figures(history: LiarHistory) -> dict[str, Any]:
    """By kind of lie: liars, lies, seconds until they were out, and the causes."""
    by_kind: dict[str, dict[str, Any]] = {}
    for kind in LieKind:
        lives = [life for life in history.lives if life.kind is kind]
        seconds = [life.seconds for life in lives if life.seconds is not None]
        by_kind[kind] = {
            "liars": len(lives),
            "lies": sum(sum(life.lies.values()) for life in lives),
            "out_seconds": _median_and_worst(seconds),
            "causes": sorted({life.cause for life in lives if life.cause}),
        }
    outcomes: dict[str, int] = {}
    for life in history.lives:
        for _, false, outcome in life.answers:
            name = f"{'false' if false else 'other'} {outcome}"
            outcomes[name] = outcomes.get(name, 0) + 1
    lowest = min(history.rewards.values(), default=0.0)
    return {
        "liars": by_kind,
        "completions_of_liars": outcomes,
        "lowest_reward": round(lowest, 3),
        "trained_rewards": history.trained,
    }


def _learned(history: LiarHistory) -> Iterator[str]:
    if not history.rewards:
        yield "no honest rollout is left"
    for pod, reward in history.rewards.items():
        if reward < LEARNED:
            yield f"the honest rollout {pod} has a reward of {reward:.2f}"


def _out_in_time(history: LiarHistory) -> Iterator[str]:
    for number, life in enumerate(history.lives):
        if life.lied is None:
            yield f"liar {number} ({life.kind}) did not lie so that it is excluded"
        elif life.seconds is None:
            yield f"liar {number} ({life.kind}) was not excluded"
        elif life.seconds > OUT_SECONDS:
            yield f"liar {number} ({life.kind}) was out after {life.seconds:.1f} s"


def _no_lie_counted(history: LiarHistory) -> Iterator[str]:
    counted: set[str] = set()
    for life in history.lives:
        for lease, false, outcome in life.answers:
            if outcome != "counted":
                continue
            if false:
                yield f"a lie about lease {lease} was counted"
            elif lease in counted:
                yield f"lease {lease} was counted twice"
            counted.add(lease)
    lowest, highest = history.trained
    if lowest < 0.0 or highest > 1.0:
        yield f"samples with rewards from {lowest:g} to {highest:g} were trained on"
    if not history.balanced:
        yield "the counters of prompts do not add up"


def _others_unharmed(history: LiarHistory) -> Iterator[str]:
    if history.distrusted:
        yield f"honest rollouts were excluded for good: {sorted(history.distrusted)}"
    if history.weights_problem:
        yield history.weights_problem
    for text in history.tracebacks:
        yield f"an honest worker logged a traceback: {text}"


_CHECKS = (_learned, _out_in_time, _no_lie_counted, _others_unharmed)


def _median_and_worst(seconds: Sequence[float]) -> list[float]:
    return [round(statistics.median(seconds), 2), round(max(seconds), 2)] if seconds else []
