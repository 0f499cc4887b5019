"""Lets sides train in turn on the same batches, and compares their seconds, memory and losses."""

from __future__ import annotations

import statistics
import sys
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any

from hack.bench.training.side_processes import Side, SideProcesses, SideStep

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hack.bench.training.random_rows import RandomRows

WARM_UP = 2  # steps whose seconds do not count; the first one makes the optimizer's state
MIB = 1 << 20


def compare(
    sides: Mapping[str, Side], rows: RandomRows, *, steps: int, tolerance: float
) -> dict[str, Any]:
    """Figures of all sides; the ratios are to the last one.

    Sides take turns, step by step, in an order that changes. RuntimeError, as of
    `expect_same_losses`, if they did not compute the same.
    """
    found: dict[str, list[SideStep]] = {name: [] for name in sides}
    with ExitStack() as undo:
        processes = {
            name: undo.enter_context(closing(SideProcesses(side, rows)))
            for name, side in sides.items()
        }
        for number in range(WARM_UP + steps):
            for name in list(sides) if number % 2 else list(sides)[::-1]:
                found[name].append(processes[name].step(number))
            print(_line(number, found), file=sys.stderr, flush=True)
        expect_same_losses(found, tolerance)
        tokens = [int(rows.batch(number).mask.sum()) for number in range(WARM_UP + steps)]
        figures = {name: _figures(found[name], tokens, processes[name]) for name in sides}
    *others, last = sides
    for name in others:
        pairs = list(zip(found[name][WARM_UP:], found[last][WARM_UP:], strict=True))
        figures[name]["step_time_ratio"] = spread([a.seconds / b.seconds for a, b in pairs])
        quickest = min(a.seconds for a, _ in pairs) / min(b.seconds for _, b in pairs)
        figures[name]["quickest_step_time_ratio"] = round(quickest, 4)
        figures[name]["cpu_time_ratio"] = spread([a.cpu_seconds / b.cpu_seconds for a, b in pairs])
        for kind in ("peak_mib", "peak_mib_beyond_imports"):
            ratio = figures[name][kind] / figures[last][kind]
            figures[name][f"{kind}_ratio"] = round(ratio, 3)
    return figures


def spread(values: list[float]) -> dict[str, float]:
    """Median, smallest and largest."""
    return {
        "median": round(statistics.median(values), 4),
        "min": round(min(values), 4),
        "max": round(max(values), 4),
    }


def expect_same_losses(found: Mapping[str, list[SideStep]], tolerance: float) -> None:
    """RuntimeError if the losses of a step differ by more than `tolerance` of their value."""
    for number, steps in enumerate(zip(*found.values(), strict=True)):
        losses = [step.loss for step in steps]
        if not all(abs(loss - losses[0]) <= tolerance * abs(losses[0]) for loss in losses):
            named = dict(zip(found, losses, strict=True))
            raise RuntimeError(f"the sides do not compute the same: step {number}: {named}")


def _figures(steps: list[SideStep], tokens: list[int], processes: SideProcesses) -> dict[str, Any]:
    peaks, before = processes.peak_memory(), processes.memory_before
    pairs = list(zip(tokens, steps, strict=True))[WARM_UP:]
    return {
        "tokens_per_second": spread([count / step.seconds for count, step in pairs]),
        "step_seconds": spread([step.seconds for step in steps[WARM_UP:]]),
        "step_cpu_seconds": spread([step.cpu_seconds for step in steps[WARM_UP:]]),
        "peak_mib": round(max(peaks) / MIB, 1),
        "peak_mib_beyond_imports": round(
            max(p - b for p, b in zip(peaks, before, strict=True)) / MIB, 1
        ),
        "losses": [step.loss for step in steps],
    }


def _line(number: int, found: Mapping[str, list[SideStep]]) -> str:
    each = (f"{name} {s[-1].seconds:.3f} s, loss {s[-1].loss:.6f}" for name, s in found.items())
    return f"step {number}: " + "; ".join(each)
