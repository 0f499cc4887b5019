"""`make chaos`: the soak on the local cluster; the last line is one JSON object.

Exit status 1 when an invariant was violated.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from hack.bench.run_record import finish, run_record
from hack.cluster import installation
from hack.soak import soak_run
from hack.soak.fault_plan import FaultKind, make_plan

if TYPE_CHECKING:
    from collections.abc import Sequence

NAMESPACE = "chaos"


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    options = _options(arguments)
    kinds = [FaultKind(name) for name in options.faults.split(",")]
    plan = make_plan(options.seed, options.seconds, kinds)
    for fault in plan:
        print(f"plan: {fault.at:6.1f} s  {fault.kind:<18} for {fault.lasts:4.1f} s", flush=True)
    kubectl = installation.connect() if options.keep_images else installation.ensure()
    within = kubectl.fresh_namespace(options.namespace)
    began = time.monotonic()
    run = run_record({"seed": options.seed, "seconds": options.seconds, "faults": options.faults})
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that faults are healed

    def say(text: str) -> None:
        print(f"[{time.monotonic() - began:5.0f} s] {text}", flush=True)

    try:
        result = soak_run.run(
            within,
            soak_run.SoakOptions(
                plan, options.seconds, weight_sync=not options.no_sync, record=options.record
            ),
            say=say,
        )
    finally:
        kubectl.run("delete", "namespace", options.namespace, "--wait=false")
    finish("soak", run, {"seed": options.seed, "seconds": options.seconds, **result})
    return 1 if result["violations"] else 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m hack.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600, help="how long faults come")
    parser.add_argument("--seed", type=int, default=1, help="same seed, same plan")
    everything = ",".join(FaultKind)
    parser.add_argument("--faults", default=everything, help=f"some of {everything}")
    parser.add_argument(
        "--namespace", default=NAMESPACE, help="recreated first, deleted at the end"
    )
    parser.add_argument(
        "--no-sync", action="store_true", help="the negative control: weights do not travel"
    )
    parser.add_argument(
        "--keep-images", action="store_true", help="use the operator that runs, build nothing"
    )
    parser.add_argument("--record", type=Path, help="a file for everything that was seen")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
