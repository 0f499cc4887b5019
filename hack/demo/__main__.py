"""`make demo`: on this machine alone, a job that learns while rollouts come and go."""

import sys
from pathlib import Path

from hack.cluster.progress import say
from hack.demo.elastic_job import JOB, follow
from hack.demo.on_this_machine import exit_code, on_this_machine

ROOT = Path(__file__).parents[2]
REPORT = ROOT / "results" / "reverse.html"
LOG = ROOT / "results" / "demo.log"


def here() -> None:
    """Run the job and follow it; raises as `follow`."""
    with on_this_machine([JOB], name="demo", log=LOG) as place:
        follow(place, report=REPORT, say=say)


def main() -> int:
    """Run the demo; the exit code for the shell."""
    return exit_code(here)


if __name__ == "__main__":
    sys.exit(main())
