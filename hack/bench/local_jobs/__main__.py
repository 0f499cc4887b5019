"""What a job on one machine costs a user, by `rollcall local`. The last line is JSON.

`python -m hack.bench.local_jobs [--rounds N]`; nothing else should run meanwhile. Each round is a
run of examples/reverse.yaml of its own, from the command to its end. Times are seconds, processor
time stands beside; ratios are within a round: to as many bare imports of torch, or to blocks
of steps that record no responses.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from hack.bench.local_jobs.measurements import figures, one_round, recording
from hack.bench.run_record import finish, run_record


def say(text: str) -> None:
    print(text, file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m hack.bench.local_jobs", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    run, rounds = run_record(vars(arguments)), []
    for number in range(1, arguments.rounds + 1):
        say(f"round {number} of {arguments.rounds}")
        with tempfile.TemporaryDirectory() as home, tempfile.TemporaryDirectory() as beside:
            rounds.append(one_round(Path(home), say=say) | recording(Path(beside), say=say))
    finish("local-jobs", run, figures(rounds))


if __name__ == "__main__":
    main()
