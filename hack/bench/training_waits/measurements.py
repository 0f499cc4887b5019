"""Pairs of whole jobs by `rollcall local`, and what one of a pair is to the other.

`blocking`: fsdp2 in two ranks sends 64 MiB to four rollouts over gloo, with `weightSync.blocking`
and without. A step's visible wait is the copy of the weights, and what training waits for a version
to be published. `staleness`: one trainer and one rollout, with `maxStaleness` 0 and 2. Two prompts
in a call of the inference engine: then neither of the two waits long for the other.
"""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hack.bench.local_jobs.local_run import LocalRun, manifests
from hack.bench.recovery.worker_log import LoggedStep
from hack.bench.spreads import spread, spreads
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


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two jobs, `steps` steps of each: `compared` of the first is divided by that of the second."""

    first: str
    second: str
    documents: tuple[list[dict[str, Any]], list[dict[str, Any]]]
    compared: str
    steps: int

    def pair(self, home: Path) -> tuple[Run, Run]:
        """One run of each, below `home`."""
        names, steps = (self.first, self.second), self.steps
        first, second = (
            _run(home / name, documents, steps=steps)
            for name, documents in zip(names, self.documents, strict=True)
        )
        return first, second

    def figures(self, pairs: Sequence[tuple[Run, Run]]) -> dict[str, Any]:
        """Of each job, by its name, and their ratio within a pair."""
        firsts, seconds = zip(*pairs, strict=True)
        ratios = [first[self.compared] / second[self.compared] for first, second in pairs]
        return {self.first: spreads(firsts), self.second: spreads(seconds), "ratio": spread(ratios)}


def comparisons() -> dict[str, Comparison]:
    """By name."""
    sent = blocking_job(blocking=True), blocking_job(blocking=False)
    old = staleness_job(0), staleness_job(2)
    return {
        "blocking": Comparison("blocking", "asynchronous", sent, "visible_wait", 20),
        "staleness": Comparison("synchronous", "asynchronous", old, STEP, 150),
    }


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
