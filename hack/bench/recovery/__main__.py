"""`make bench-recovery`: trials of each event on the local cluster, then one line of JSON.

The trials go to a new file in results/, each appended as it ends, with the commit, the machine, the
date and the load of the run. `--continue FILE` adds to the trials of an earlier run what it lacks;
`--summary FILE` measures nothing. Times are seconds.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from hack import svg_file
from hack.bench.recovery import (
    chart,
    import_limit,
    join_cost,
    naive_restart,
    rollout_faults,
    scale_up,
    trainer_kill,
)
from hack.bench.recovery.bench_job import BenchJob, BenchJobSettings
from hack.bench.recovery.trial_file import TrialFile
from hack.bench.recovery.trial_statistics import TrialResult, summarize
from hack.bench.run_record import caption, new_result, run_record
from hack.cluster import installation
from hack.cluster.errors import ClusterError
from hack.cluster.kubectl import Kubectl

TRIALS = 50
# Those that take long, or vary little.
FEWER: Mapping[str, int] = {"scale_up_limit": 20, "join_cost": 20, "naive_stop": 10}
TROUBLES = (TimeoutError, ConnectionError, OSError, ValueError, ClusterError)
MOST_FAILURES = 5  # of an event

Trial = Callable[[BenchJob, int], list[TrialResult]]

EVENTS: Mapping[str, tuple[BenchJobSettings, Trial]] = {
    "kill_idle": (BenchJobSettings(4), lambda job, _: rollout_faults.kill(job, "idle")),
    "kill_stage": (BenchJobSettings(4), lambda job, _: rollout_faults.kill(job, "stage")),
    "stop": (BenchJobSettings(4), lambda job, _: rollout_faults.stop(job)),
    "scale_up": (BenchJobSettings(2), lambda job, _: scale_up.up(job)),
    "scale_up_limit": (BenchJobSettings(2), lambda job, _: import_limit.imports(job)),
    "trainer_kill": (BenchJobSettings(2, checkpoint=True), trainer_kill.kill),
    "join_cost": (BenchJobSettings(2), lambda job, _: join_cost.cost(job)),
    "naive_stop": (
        BenchJobSettings(4, checkpoint=True, detection=False),
        lambda job, _: naive_restart.stop(job),
    ),
}


def main() -> int:
    """Measure, draw and sum up; 1 when trials failed."""
    arguments = _arguments()
    if arguments.summary:
        trials = TrialFile(arguments.summary)
    else:
        run = run_record({"trials": arguments.trials, "only": arguments.only})
        trials = TrialFile(arguments.continued or new_result("recovery", run))
        print(f"the trials go to {trials.path}", file=sys.stderr)
        cluster = installation.connect() if arguments.no_setup else installation.ensure()
        trials.begin(run)
        for event in arguments.only or EVENTS:
            _measure(cluster, event, wanted=arguments.trials, trials=trials)
    results, captions = trials.results(), [caption(run) for run in trials.runs()]
    if arguments.chart or not arguments.summary:
        path = arguments.chart or trials.path.with_suffix(".svg")
        svg_file.save(chart.draw(results, caption="\n".join(captions)), path)
    found = summarize(results)
    print(chart.table(results))
    print("\n".join(f"run: {line}" for line in captions))
    print(json.dumps({"runs": trials.runs(), "file": str(trials.path), "events": found}))
    return 1 if any("failed" in figures for figures in found.values()) else 0


def _measure(cluster: Kubectl, event: str, *, wanted: int, trials: TrialFile) -> None:
    """Trials of one event until there are enough, with another job after each failure."""
    wanted = min(wanted, FEWER.get(event, wanted))
    settings, trial = EVENTS[event]
    for attempt in range(MOST_FAILURES):
        if trials.completed(event) >= wanted:
            return
        print(f"{event}: making a job for it, attempt {attempt + 1}", file=sys.stderr)
        try:
            with BenchJob(cluster, settings) as job:
                _run(job, event, trial, wanted=wanted, trials=trials)
        except TROUBLES as error:
            print(f"{event}: no job: {type(error).__name__}: {error}", file=sys.stderr)


def _run(job: BenchJob, event: str, trial: Trial, *, wanted: int, trials: TrialFile) -> None:
    """Trials until there are enough, or one fails: its job may not be used again."""
    while (number := trials.completed(event)) < wanted:
        load = os.getloadavg()[0]
        try:
            results = trial(job, number)
        except TROUBLES as error:
            failure = f"{type(error).__name__}: {error}"[:500]
            results = [TrialResult(event, None, {"error": failure})]
        trials.add(results, load=load)
        print(f"  {event} {number}: {[(r.event, r.seconds) for r in results]}", file=sys.stderr)
        if any(result.seconds is None for result in results):
            return


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m hack.bench.recovery", description=__doc__)
    parser.add_argument("--trials", type=int, default=TRIALS, help="of each event, in all")
    parser.add_argument("--only", action="append", choices=EVENTS, help="events, default all")
    parser.add_argument("--chart", type=Path, help="the SVG to draw; default: beside the trials")
    parser.add_argument("--no-setup", action="store_true", help="use cluster and operator as is")
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--continue", dest="continued", type=Path, metavar="FILE", help="add trials to this file"
    )
    which.add_argument("--summary", type=Path, metavar="FILE", help="sum up this file, run nothing")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
