"""`make bench-recovery`: trials of each event on the local cluster, then one line of JSON.

Every trial is appended to a file as it ends, so a run that was cut short is continued by the same
command; `--only` takes one event after another. Times are seconds.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from hack.bench.recovery import chart, faults, join, limit, naive, report, scale, trainer
from hack.bench.recovery.bench_job import BenchJob, Settings
from hack.bench.recovery.stats import Record, summarize
from hack.cluster import installation
from hack.cluster.errors import ClusterError
from hack.cluster.kubectl import ROOT, KubectlError

OUT = ROOT / "docs" / "measurements" / "recovery.jsonl"
CHART = OUT.with_suffix(".svg")
TRIALS = 50
# Those that take long, or vary little.
FEWER: Mapping[str, int] = {"scale_up_limit": 20, "join_cost": 20, "naive_kill": 10}
TROUBLES = (TimeoutError, ConnectionError, OSError, ValueError, KubectlError, ClusterError)
MOST_FAILURES = 5  # of an event

Trial = Callable[[BenchJob, int], list[Record]]

EVENTS: Mapping[str, tuple[Settings, Trial]] = {
    "kill_idle": (Settings(4), lambda job, _: faults.kill(job, "idle")),
    "kill_stage": (Settings(4), lambda job, _: faults.kill(job, "stage")),
    "stop": (Settings(4), lambda job, _: faults.stop(job)),
    "scale_up": (Settings(2), lambda job, _: scale.up(job)),
    "scale_up_limit": (Settings(2), lambda job, _: limit.imports(job)),
    "trainer_kill": (
        Settings(2, checkpoint=True),
        lambda job, number: trainer.kill(job, replace=number % 2 == 1),
    ),
    "join_cost": (Settings(2), lambda job, _: join.cost(job)),
    "naive_kill": (Settings(4, checkpoint=True), lambda job, _: naive.kill(job)),
}


def main() -> int:
    """Run what is missing, draw and sum up; 1 when trials failed."""
    arguments = _arguments()
    events = arguments.only or list(EVENTS)
    if not arguments.summary:
        cluster = installation.connect() if arguments.no_setup else installation.ensure()
        for event in events:
            wanted = min(arguments.trials, FEWER.get(event, arguments.trials))
            for attempt in range(MOST_FAILURES):
                settings, trial = EVENTS[event]
                if _done(arguments.out, event) >= wanted:
                    break
                print(f"{event}: a job for it, attempt {attempt}", file=sys.stderr)
                try:
                    with BenchJob(cluster, settings) as job:
                        _run(job, event, trial, wanted=wanted, out=arguments.out)
                except TROUBLES as error:
                    print(f"{event}: no job: {type(error).__name__}: {error}", file=sys.stderr)
    records = read(arguments.out)
    if arguments.chart:
        arguments.chart.write_text(chart.draw(records), encoding="utf-8")
    found = summarize(records)
    print(report.table(records))
    print(json.dumps(found))
    return 1 if any("failed" in figures for figures in found.values()) else 0


def _run(job: BenchJob, event: str, trial: Trial, *, wanted: int, out: Path) -> None:
    """Trials until there are enough, or one fails: its job may not be used again."""
    while (number := _done(out, event)) < wanted:
        load = os.getloadavg()[0]
        try:
            records = trial(job, number)
        except TROUBLES as error:
            records = [Record(event, None, {"error": f"{type(error).__name__}: {error}"[:500]})]
        with out.open("a", encoding="utf-8") as file:
            for record in records:
                at = {"time": round(time.time()), "load": round(load, 1)}
                file.write(json.dumps(record.encode() | at) + "\n")
        print(f"  {event} {number}: {[(r.event, r.seconds) for r in records]}", file=sys.stderr)
        if any(record.seconds is None for record in records):
            return


def read(path: Path) -> list[Record]:
    """All trials so far."""
    if not path.exists():
        return []
    values = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
    return [Record(v["event"], v["seconds"], v["details"]) for v in values]


def _done(path: Path, event: str) -> int:
    return sum(record.event == event and record.seconds is not None for record in read(path))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m hack.bench.recovery", description=__doc__)
    parser.add_argument("--trials", type=int, default=TRIALS, help="of each event, in all")
    parser.add_argument("--only", action="append", choices=EVENTS, help="events, default all")
    parser.add_argument("--out", type=Path, default=OUT, help="trials are appended to it")
    parser.add_argument("--chart", type=Path, help="draw the distribution into this SVG")
    parser.add_argument("--summary", action="store_true", help="run nothing, sum up what is there")
    parser.add_argument("--no-setup", action="store_true", help="use cluster and operator as is")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
