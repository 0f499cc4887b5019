"""`make liar`: one of four rollouts lies, beside other faults; the last line is one JSON object.

Exit status 1 when something that must hold did not.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hack.bench.run_record import finish, run_record
from hack.liar.liar_soak import FAULTS, LiarSoak, soaked_job
from hack.soak.fault_plan import FaultKind, make_plan

if TYPE_CHECKING:
    from collections.abc import Sequence


async def soak(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Run the plan; what is to be printed."""
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - began:5.0f} s] {text}", flush=True)

    kinds = [FaultKind(name) for name in options.faults.split(",") if name]
    plan = make_plan(options.seed, options.seconds, kinds) if kinds else []
    async with soaked_job(folder) as job:
        return await LiarSoak(job, seed=options.seed, say=say).run(plan, options.seconds)


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m hack.liar", description=__doc__)
    parser.add_argument("--seconds", type=float, default=400, help="how long it lies")
    parser.add_argument("--seed", type=int, default=1, help="of lies and faults")
    parser.add_argument("--faults", default=",".join(FAULTS), help="beside the liar; may be empty")
    options = parser.parse_args(arguments)
    run = run_record(vars(options))
    folder = Path(tempfile.mkdtemp(prefix="rollcall-liar-"))
    result = asyncio.run(soak(options, folder))
    finish("liar", run, {"seed": options.seed, **result})
    return 1 if result["violations"] else 0


if __name__ == "__main__":
    sys.exit(main())
