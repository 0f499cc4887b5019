"""What training waits for: weights that are sent, and samples. The last line is JSON.

`python -m hack.bench.training_waits [--only blocking|staleness] [--pairs N]`; nothing else should
run meanwhile. Pairs of jobs run one after the other, and ratios are within a pair.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from hack.bench.run_record import finish, run_record
from hack.bench.training_waits.measurements import comparisons


def main() -> None:
    known = comparisons()
    parser = argparse.ArgumentParser(
        prog="python -m hack.bench.training_waits", description=__doc__
    )
    parser.add_argument("--only", choices=sorted(known), action="append")
    parser.add_argument("--pairs", type=int, default=3)
    arguments = parser.parse_args()
    run, found = run_record(vars(arguments)), {}
    for name in arguments.only or known:
        comparison, pairs = known[name], []
        for _ in range(arguments.pairs):
            with tempfile.TemporaryDirectory() as home:
                pairs.append(comparison.pair(Path(home)))
            first, second = (each[comparison.compared] for each in pairs[-1])
            sides = f"{comparison.first} and {comparison.second}"
            print(f"{name}: {first:.4f} and {second:.4f} s, {sides}", file=sys.stderr)
        found[name] = comparison.figures(pairs)
    finish("training-waits", run, found)


if __name__ == "__main__":
    main()
