"""Does all attacks on a job of real workers, or those that `--only` names.

The last line is one JSON object: what became of each attack. Exit status 0 if every one was refused
and counted, no worker ended, and none used more than 1.25 of its memory before.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from hack.attacks.catalogue import all_attacks
from hack.attacks.runner import AttackRunner
from hack.attacks.target import attacked_job
from tests.local import pods
from tests.local.worker_processes import WorkerForkServer

if TYPE_CHECKING:
    from hack.attacks.attack import Attack
    from hack.attacks.outcome import AttackOutcome

QUIET_SECONDS = 10.0  # in which the job's rate and memory are measured


async def attack_all(attacks: list[Attack], *, seed: int, folder: Path) -> list[AttackOutcome]:
    """Start a job, and do the attacks one after the other."""
    say(f"starting the job; its files are in {folder}")
    outcomes = []
    async with attacked_job(folder, seed=seed) as job:
        runner = AttackRunner(job)
        say(f"measuring it without attacks for {QUIET_SECONDS:g} s")
        await runner.measure(QUIET_SECONDS)
        say(f"{runner.rate:.2f} steps a second; {len(attacks)} attacks, seed {seed}")
        for number, attack in enumerate(attacks, 1):
            began = time.monotonic()
            outcome = await runner.run(attack)
            outcomes.append(outcome)
            failures = outcome.failures()
            verdict = "; ".join(failures) if failures else "refused"
            seconds = time.monotonic() - began
            share = outcome.peak_share
            say(
                f"{number:3}/{len(attacks)} {attack.name}: {verdict} ({seconds:.1f} s, {share:.2f})"
            )
    return outcomes


def say(line: str) -> None:
    """A line of progress."""
    print(line, flush=True)


def main() -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(prog="python -m hack.attacks", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of what is random (default 1)")
    parser.add_argument("--only", nargs="*", default=[], help="names of attacks")
    parser.add_argument("--quick", action="store_true", help="those of make test")
    parser.add_argument("--list", action="store_true", help="print the attacks, and do none")
    arguments = parser.parse_args()
    chosen = [
        attack
        for attack in all_attacks()
        if (not arguments.only or attack.name in arguments.only)
        and (attack.quick or not arguments.quick)
    ]
    if arguments.list:
        for attack in chosen:
            say(f"{attack.name} ({attack.role}): {attack.what}")
        return 0
    folder = Path(tempfile.mkdtemp(prefix="rollcall-attacks-"))
    with WorkerForkServer(pods.AT_IMPORT) as server:
        pods.FORK_SERVER = server
        outcomes = asyncio.run(attack_all(chosen, seed=arguments.seed, folder=folder))
    failed = [outcome for outcome in outcomes if outcome.failures()]
    say(f"{len(outcomes) - len(failed)} of {len(outcomes)} attacks as promised")
    say(json.dumps({outcome.attack.name: outcome.row() for outcome in outcomes}))
    return 1 if failed or not outcomes else 0


if __name__ == "__main__":
    sys.exit(main())
