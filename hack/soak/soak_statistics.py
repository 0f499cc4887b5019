"""The numbers of a soak, from what was seen: pure."""

from __future__ import annotations

import bisect
import itertools
import math
import re
import statistics
from collections import Counter
from typing import TYPE_CHECKING, Any

from hack.soak.fault_plan import FaultKind
from hack.soak.soak_history import TRAINER, SoakHistory

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

WINDOW_S = 15.0
_STEP_S = 0.3
_SESSION = re.compile(r"^session \S+ formed: \d+ members?, ([\d.]+) s after (\w+)")
_STEP = re.compile(r"^step \d+: ")
_NOTICED = re.compile(r" lost: | is suspected: ")
NOTICEABLE = (
    FaultKind.KILL_ROLLOUT,
    FaultKind.STOP_ROLLOUT,
    FaultKind.PARTITION_ROLLOUT,
    FaultKind.OOM_ROLLOUT,
    FaultKind.DELETE_ROLLOUT,
    FaultKind.KILL_SERVER,
    FaultKind.STOP_SERVER,
)


def spread(values: Iterable[float]) -> dict[str, float]:
    """n, median, p99 and worst, in seconds; n alone when there are none."""
    found = sorted(values)
    if not found:
        return {"n": 0}
    p99 = found[max(0, math.ceil(0.99 * len(found)) - 1)]
    figures = {"median": statistics.median(found), "p99": p99, "worst": found[-1]}
    return {"n": len(found), **{name: round(value, 3) for name, value in figures.items()}}


def figures(history: SoakHistory) -> dict[str, Any]:
    """Everything that the soak prints but its verdict."""
    done = [fault for fault in history.faults if not fault.trouble]
    sessions = [found for line in history.lines if (found := _SESSION.match(line.message))]
    epochs: dict[int, str] = {}
    for sight in history.sights:
        epochs |= sight.epochs
    stalls = stall_seconds(history)
    noticed = detection_seconds(history)
    return {
        "faults": {"total": len(done), **_count(fault.kind for fault in done)},
        "not_injected": [f"{f.kind}: {f.trouble}" for f in history.faults if f.trouble],
        "epochs": {"total": len(epochs), **_count(epochs.values())},
        "sessions": {"total": len(sessions), **_count(found[2] for found in sessions)},
        "detection": {
            "all": spread(itertools.chain(*noticed.values())),
            **{kind.value: spread(found) for kind, found in noticed.items()},
        },
        "rebuild": spread(float(found[1]) for found in sessions),
        "step": spread(gaps(step_times(history))[1]),
        "stall": {
            "rollout_faults": spread(
                itertools.chain(*(stalls.get(kind, []) for kind in NOTICEABLE))
            ),
            **{kind.value: spread(found) for kind, found in stalls.items()},
        },
        "prompts": prompts(history),
        "trainer_lives": len(_last_of_each_life(history)),
        "reward": {
            reading.worker.pod: round(reading.values.get("rollout_reward", math.nan), 3)
            for reading in history.final
        },
    }


def detection_seconds(history: SoakHistory) -> dict[FaultKind, list[float]]:
    """From a fault of one rollout until the coordinator says that it is lost or a suspect."""
    found: dict[FaultKind, list[float]] = {}
    for fault in history.faults:
        if fault.kind not in NOTICEABLE or fault.trouble:
            continue
        limit = max(fault.healed, fault.began) + WINDOW_S
        reported = (
            line.time
            for line in history.lines
            if fault.began - 0.05 <= line.time <= limit
            and fault.uid in line.message
            and _NOTICED.search(line.message)
        )
        first = min(reported, default=None)
        if first is not None:
            found.setdefault(fault.kind, []).append(max(0.0, first - fault.began))
    return found


def stall_seconds(history: SoakHistory) -> dict[FaultKind, list[float]]:
    """The longest gap between two steps after each fault, less the usual gap.

    A gap is due to the fault that began last before it, or in the step with which it begins.
    """
    times = step_times(history)
    faults = [fault for fault in history.faults if not fault.trouble]
    if len(times) < 2 or not faults:
        return {}
    usual = statistics.median(gaps(times)[1])
    began = [fault.began for fault in faults]
    longest = [0.0] * len(faults)
    for a, b in itertools.pairwise(times):
        owner = bisect.bisect_right(began, a + max(_STEP_S, 2 * usual)) - 1
        if owner >= 0 and a <= max(faults[owner].healed, began[owner]) + WINDOW_S:
            longest[owner] = max(longest[owner], b - a)
    found: dict[FaultKind, list[float]] = {}
    for fault, gap in zip(faults, longest, strict=True):
        found.setdefault(fault.kind, []).append(max(0.0, gap - usual))
    return found


def step_times(history: SoakHistory) -> list[float]:
    """When the trainer's steps ended, over all of its incarnations."""
    return sorted(line.time for line in history.lines if _STEP.match(line.message))


def gaps(times: Sequence[float]) -> tuple[list[float], list[float]]:
    """The times, and the seconds between each and the one before."""
    return list(times), [b - a for a, b in itertools.pairwise(times)]


def prompts(history: SoakHistory) -> dict[str, int]:
    """Prompts by outcome, over all lives of the trainer: each counts from 0."""
    found = Counter[str]()
    for reading in _last_of_each_life(history):
        for name, value in reading.items():
            if name.startswith("prompts_total{"):
                found[name.removeprefix("prompts_total{").rstrip("}")] += int(value)
    return dict(found)


def _last_of_each_life(history: SoakHistory) -> list[dict[str, float]]:
    last: dict[str, dict[str, float]] = {}
    for readings in history.readings:
        for reading in readings:
            if reading.worker.role == TRAINER:
                last[reading.worker.incarnation] = dict(reading.values)
    return list(last.values())


def _count(names: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(str(name) for name in names).items()))
