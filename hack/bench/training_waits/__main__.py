"""What training waits for: weights that are sent, and samples. The last line is JSON.

`python -m hack.bench.training_waits [--only blocking|staleness] [--pairs N]`; nothing else should
run meanwhile. Pairs of jobs run one after the other, and ratios are within a pair.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from hack.bench.run_record import finish, run_record
from hack.bench.training_waits import measurements
from hack.bench.training_waits.measurements import STEP, medians, ratio

STEPS = {"blocking": 20, "staleness": 150}
SIDES = {"blocking": ("blocking", "asynchronous"), "staleness": ("synchronous", "asynchronous")}
COMPARED = {"blocking": "visible_wait", "staleness": STEP}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m hack.bench.training_waits", description=__doc__
    )
    parser.add_argument("--only", choices=sorted(STEPS), action="append")
    parser.add_argument("--pairs", type=int, default=3)
    arguments = parser.parse_args()
    run, found = run_record(vars(arguments)), {}
    for name in arguments.only or STEPS:
        pairs = []
        for _ in range(arguments.pairs):
            with tempfile.TemporaryDirectory() as home:
                pairs.append(getattr(measurements, name)(Path(home), steps=STEPS[name]))
            first, second = (each[COMPARED[name]] for each in pairs[-1])
            sides = " and ".join(SIDES[name])
            print(f"{name}: {first:.4f} and {second:.4f} s, {sides}", file=sys.stderr)
        found[name] = medians(pairs, SIDES[name]) | {"ratio": ratio(pairs, COMPARED[name])}
    finish("training-waits", run, found)


if __name__ == "__main__":
    main()
