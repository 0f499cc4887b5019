"""`make chaos`: the soak on the local cluster; the last line is one JSON object.

Exit status 1 when an invariant was violated.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from hack.bench.run_record import finish, run_record
from hack.cluster import images, installation
from hack.cluster.examples import PREFIX, TAG
from hack.soak import soak_run
from hack.soak.fault_plan import FaultKind, make_plan
from hack.soak.hostile_job import hostile_job
from hack.soak.soak_job import JOBS

if TYPE_CHECKING:
    from collections.abc import Sequence

NAMESPACE = "chaos"


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    options = _options(arguments)
    job = JOBS[options.rollouts]
    kinds = options.faults or job.faults
    plan = make_plan(options.seed, options.seconds, kinds, every=job.every)
    for fault in plan:
        print(f"plan: {fault.at:6.1f} s  {fault.kind:<18} for {fault.lasts:4.1f} s", flush=True)
    kubectl = installation.connect() if options.keep_images else installation.ensure()
    node = _node_with(job.image, build=not options.keep_images) if job.image else ""
    within = kubectl.fresh_namespace(options.namespace)
    began = time.monotonic()
    names = ("rollouts", "seed", "seconds", "no_sync", "hostile")
    settings = {name: getattr(options, name) for name in names}
    run = run_record(settings | {"faults": kinds})
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that faults are healed

    def say(text: str) -> None:
        print(f"[{time.monotonic() - began:5.0f} s] {text}", flush=True)

    wanted = soak_run.SoakOptions(
        plan,
        options.seconds,
        job=job,
        node=node,
        weight_sync=not options.no_sync,
        record=options.record,
    )
    beside = f"{options.namespace}-hostile"
    try:
        with hostile_job(kubectl, beside) if options.hostile else nullcontext(list) as others:
            result = soak_run.run(within, wanted, say=say)
            result["violations"] += others()
    finally:
        kubectl.run("delete", "namespace", options.namespace, "--wait=false")
    finish("soak", run, {"seed": options.seed, "seconds": options.seconds, **result})
    return 1 if result["violations"] else 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m hack.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600, help="how long faults come")
    parser.add_argument("--seed", type=int, default=1, help="same seed, same plan")
    parser.add_argument("--rollouts", choices=JOBS, default="tiny", help="their inference engine")
    parser.add_argument("--faults", type=_kinds, help=f"some of {','.join(FaultKind)}")
    parser.add_argument(
        "--namespace", default=NAMESPACE, help="recreated first, deleted at the end"
    )
    parser.add_argument(
        "--no-sync", action="store_true", help="the negative control: weights do not travel"
    )
    parser.add_argument(
        "--hostile", action="store_true", help="beside a job whose coordinator attacks the operator"
    )
    parser.add_argument(
        "--keep-images", action="store_true", help="use the operator that runs, build nothing"
    )
    parser.add_argument("--record", type=Path, help="a file for everything that was seen")
    options = parser.parse_args(arguments)
    for kind in options.faults or ():
        if kind not in JOBS[options.rollouts].faults:
            parser.error(f"--faults: rollouts on {options.rollouts} have no {kind}")
    return options


def _kinds(names: str) -> list[FaultKind]:
    try:
        return [FaultKind(name) for name in names.split(",")]
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _node_with(image: str, *, build: bool) -> str:
    """The node for rollouts that need an image, which is put there; "" where all can pull it."""
    if build:
        return next(iter(installation.ensure_image(image, most=1)), "")
    return images.load([images.full_name(image, prefix=PREFIX, tag=TAG)], most=1)[0]


if __name__ == "__main__":
    sys.exit(main())
