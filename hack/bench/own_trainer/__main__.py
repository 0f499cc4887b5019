"""What the library costs a trainer of one's own. The last line is JSON.

`python -m hack.bench.own_trainer [--only memory|killed|trl] [--rounds N]`; nothing else should run
meanwhile. `memory`: of a publication of 768 MiB, in trainer and coordinator, beyond the model.
`killed`: a publication of 256 MiB to two rollouts, of which one is killed in the middle, beside
undisturbed ones. `trl`: TRL's GRPOTrainer with rollouts beside its own generation in the trainer.
"""

import argparse
import asyncio
import sys

from hack.bench.own_trainer.killed_rollouts import killed_rollouts
from hack.bench.own_trainer.memory import publication_memory
from hack.bench.own_trainer.trl_steps import trl_steps
from hack.bench.run_record import finish, run_record

MEASURED = {"memory": publication_memory, "killed": killed_rollouts, "trl": trl_steps}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m hack.bench.own_trainer", description=__doc__)
    parser.add_argument("--only", choices=sorted(MEASURED), action="append")
    parser.add_argument("--rounds", type=int, default=10)
    arguments = parser.parse_args()
    run, found = run_record(vars(arguments)), {}
    for name in arguments.only or MEASURED:
        found[name] = asyncio.run(MEASURED[name](arguments.rounds))
        print(f"{name}: {found[name]}", file=sys.stderr)
    finish("own-trainer", run, found)


if __name__ == "__main__":
    main()
