"""Pairs of whole jobs by `rollcall local`, and what one of a pair is to the other.

`blocking`: fsdp2 in two ranks sends 64 MiB to four rollouts over gloo, with `weightSync.blocking`
and without. A step's visible wait is the copy of the weights, and what training waits for a version
to be published. `staleness`: one trainer and one rollout, with `maxStaleness` 0 and 2. Two prompts
in a call of the inference engine: then neither of the two waits long for the other.
"""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hack.bench.local_jobs.local_run import LocalRun, manifests
from hack.bench.recovery.worker_log import LoggedStep
from rollcall_protocol.step_history import StepRow, read_rows

SNAPSHOT, POLICY = "timing_s/snapshot", "timing_s/wait_for_policy"
STEP = "timing_s/step"
MEANS = (
    *(STEP, "timing_s/train", SNAPSHOT, POLICY, "timing_s/wait_for_batch"),
    *("timing_s/stage", "timing_s/commit"),
)
JOB_SECONDS = 900.0
Run = dict[str, float]


def blocking_job(*, blocking: bool) -> list[dict[str, Any]]:
    """As many samples as make a step longer than its weights take to arrive."""
    documents = manifests({})
    spec = documents[0]["spec"]
    spec["model"]["path"] = "builtin:reverse-64m"
    spec["trainer"]["processesPerPod"] = 2
    spec["trainer"]["engine"] = {"name": "fsdp2", "config": {"minibatches": 1}}
    del spec["trainer"]["checkpoint"]
    spec["algorithm"] |= {"promptsPerStep": 4, "groupSize": 4}
    spec["weightSync"] = {"engine": "gloo", "blocking": blocking}
    spec["rollouts"][0]["replicas"] = 4
    return documents[:1]


def staleness_job(most: int) -> list[dict[str, Any]]:
    """A synchronous job, whose `most` is 0, differs in that alone."""
    documents = manifests({})
    spec = documents[0]["spec"]
    del spec["trainer"]["checkpoint"]
    spec["algorithm"]["maxStaleness"] = most
    spec["rollouts"][0]["replicas"] = 1
    spec["rollouts"][0]["engine"]["config"] = {"concurrency": 2}
    return documents[:1]


def blocking(home: Path, *, steps: int) -> tuple[Run, Run]:
    """A job that blocks, and one that does not."""
    return _pair(home, lambda value: blocking_job(blocking=value), (True, False), steps)


def staleness(home: Path, *, steps: int) -> tuple[Run, Run]:
    """A synchronous job, and an asynchronous one."""
    return _pair(home, staleness_job, (0, 2), steps)


def _pair(
    home: Path, job: Callable[[Any], list[dict[str, Any]]], values: tuple[Any, Any], steps: int
) -> tuple[Run, Run]:
    first, second = (_run(home / str(value), job(value), steps=steps) for value in values)
    return first, second


def _run(home: Path, documents: list[dict[str, Any]], *, steps: int) -> Run:
    """Means of `steps` steps after a quarter as many, in which buffers are made and models load."""
    home.mkdir()
    first = max(5, steps // 4)
    with LocalRun(home, documents) as run:
        run.until(LoggedStep, lambda step: step.number >= first, seconds=JOB_SECONDS)
        cpu, began = run.cpu_seconds(), time.monotonic()
        run.until(LoggedStep, lambda step: step.number >= first + steps, seconds=JOB_SECONDS)
        cores = (run.cpu_seconds() - cpu) / (time.monotonic() - began)
        rows = _history(home)
    return means(rows, first=first, steps=steps) | {"cores": cores}


def _history(home: Path) -> list[StepRow]:
    (path,) = home.rglob("history.jsonl")
    return read_rows(path.read_text())


def means(rows: Sequence[StepRow], *, first: int, steps: int) -> Run:
    """Of the `steps` steps after step `first`; ValueError if a figure is missing in one."""
    taken = [row for row in rows if first < row.step <= first + steps]
    if len(taken) != steps or any(STEP not in row.figures for row in taken[:-1]):
        raise ValueError(f"{len(taken)} of {steps} steps have their times")
    found = {
        name: statistics.fmean(row.figures[name] for row in taken if name in row.figures)
        for name in MEANS
    }
    found["visible_wait"] = found[SNAPSHOT] + found[POLICY]
    found["reward"] = statistics.fmean(row.figures["reward/mean"] for row in taken[-10:])
    return found


def ratio(pairs: Sequence[tuple[Run, Run]], name: str) -> dict[str, float]:
    """Of the first of each pair to the second."""
    return _spread([first[name] / second[name] for first, second in pairs])


def medians(pairs: Sequence[tuple[Run, Run]], names: tuple[str, str]) -> dict[str, Any]:
    """Of each side, by the side's name."""
    return {
        side: {name: _spread([run[name] for run in runs]) for name in runs[0]}
        for side, runs in zip(names, zip(*pairs, strict=True), strict=True)
    }


def _spread(values: Sequence[float]) -> dict[str, float]:
    ends: Mapping[str, float]
    ends = {"median": statistics.median(values), "min": min(values), "max": max(values)}
    return {name: float(f"{value:.3g}") for name, value in ends.items()}
