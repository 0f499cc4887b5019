"""Which fault comes when: random numbers of a seed decide it, before anything runs."""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class FaultKind(StrEnum):
    """What can be done to a job and the cluster under it."""

    KILL_ROLLOUT = "kill-rollout"
    STOP_ROLLOUT = "stop-rollout"
    PARTITION_ROLLOUT = "partition-rollout"
    SLOW_ROLLOUT = "slow-rollout"
    OOM_ROLLOUT = "oom-rollout"
    DELETE_ROLLOUT = "delete-rollout"
    KILL_TRAINER = "kill-trainer"
    PARTITION_TRAINER = "partition-trainer"
    DISK_FULL = "disk-full"
    SCALE = "scale"
    KILL_OPERATOR = "kill-operator"
    API_OUTAGE = "api-outage"
    NODE_LOSS = "node-loss"
    KILL_SERVER = "kill-server"
    STOP_SERVER = "stop-server"


@dataclass(frozen=True, slots=True)
class FaultTraits:
    """How long a kind lasts (seconds, from and to), how often it comes beside others, and how
    long the cluster needs after it, in which no other fault with a `heavy` mark begins.
    """

    lasts: tuple[float, float]
    weight: float = 1.0
    heavy: float = 0.0


TRAITS = {
    FaultKind.KILL_ROLLOUT: FaultTraits((0, 0), weight=4),
    FaultKind.STOP_ROLLOUT: FaultTraits((5, 10), weight=2),
    FaultKind.PARTITION_ROLLOUT: FaultTraits((5, 10), weight=2),
    FaultKind.SLOW_ROLLOUT: FaultTraits((6, 12), weight=1),
    FaultKind.OOM_ROLLOUT: FaultTraits((0, 0), weight=1),
    FaultKind.DELETE_ROLLOUT: FaultTraits((0, 0), weight=2),
    FaultKind.KILL_TRAINER: FaultTraits((0, 0), weight=1.5),
    FaultKind.PARTITION_TRAINER: FaultTraits((4, 8), weight=1),
    FaultKind.DISK_FULL: FaultTraits((6, 12), weight=1),
    FaultKind.SCALE: FaultTraits((10, 15), weight=1),
    FaultKind.KILL_OPERATOR: FaultTraits((0, 0), weight=1),
    FaultKind.API_OUTAGE: FaultTraits((10, 25), weight=0.7, heavy=15),
    # Longer than Kubernetes takes to call a node lost: what ran there must come up elsewhere.
    FaultKind.NODE_LOSS: FaultTraits((80, 95), weight=0.3, heavy=30),
    FaultKind.KILL_SERVER: FaultTraits((0, 0), weight=3),
    # From shorter to longer than its agent waits for an answer (soak_job.SILENT_S).
    FaultKind.STOP_SERVER: FaultTraits((4, 18), weight=2),
}
QUICK = (
    FaultKind.KILL_ROLLOUT,
    FaultKind.STOP_ROLLOUT,
    FaultKind.PARTITION_ROLLOUT,
    FaultKind.DELETE_ROLLOUT,
    FaultKind.KILL_TRAINER,
    FaultKind.DISK_FULL,
    FaultKind.KILL_OPERATOR,
)


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """One fault: `at` seconds after the start it begins, and it heals `lasts` seconds later.

    `pick` in [0, 1) chooses among the victims that are there at that time.
    """

    number: int
    kind: FaultKind
    at: float
    lasts: float
    pick: float

    @property
    def ends(self) -> float:
        """When it is healed, in seconds after the start."""
        return self.at + self.lasts


def make_plan(
    seed: int,
    seconds: float,
    kinds: Sequence[FaultKind],
    *,
    every: tuple[float, float] = (7.0, 15.0),
) -> list[PlannedFault]:
    """Faults that begin and heal within `seconds`, `every` so many seconds; same seed, same plan.

    Each kind comes once before any comes by its weight, as far as the time allows.
    """
    draw = random.Random(seed)
    first = list(dict.fromkeys(kinds))
    draw.shuffle(first)
    # What takes longest to heal must begin early to fit.
    waiting = sorted(first, key=lambda kind: -TRAITS[kind].lasts[1])
    waiting = waiting[:1] + draw.sample(waiting[1:], len(waiting) - 1)
    plan: list[PlannedFault] = []
    at = round(draw.uniform(1.0, 3.0), 1)
    while at < seconds:
        fault = _next(draw, len(plan), at, waiting=waiting, kinds=first, plan=plan, until=seconds)
        if fault is not None:
            plan.append(fault)
        at = round(at + draw.uniform(*every), 1)
    return plan


def _next(
    draw: random.Random,
    number: int,
    at: float,
    *,
    waiting: list[FaultKind],
    kinds: Sequence[FaultKind],
    plan: Sequence[PlannedFault],
    until: float,
) -> PlannedFault | None:
    def fits(kind: FaultKind) -> bool:
        traits = TRAITS[kind]
        if at + traits.lasts[1] > until:
            return False
        return not any(
            (fault.kind == kind and at < fault.ends)
            or (
                traits.heavy
                and TRAITS[fault.kind].heavy
                and at < fault.ends + TRAITS[fault.kind].heavy
            )
            for fault in plan
        )

    kind = next((kind for kind in waiting if fits(kind)), None)
    if kind is not None:
        waiting.remove(kind)
    else:
        fitting = [kind for kind in kinds if fits(kind)]
        if not fitting:
            return None
        (kind,) = draw.choices(fitting, [TRAITS[kind].weight for kind in fitting])
    lasts = round(draw.uniform(*TRAITS[kind].lasts), 1)
    return PlannedFault(number, kind, at, lasts, round(draw.random(), 6))
