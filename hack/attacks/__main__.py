"""Does all attacks on a job of real workers, or those that `--only` names.

The last line is one JSON object: what became of each attack. Exit status 0 if every one was refused
and counted, no worker ended or used more than 1.25 of its memory before, and the rollouts learned.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import math
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from hack.attacks.catalogue import all_attacks
from hack.attacks.endpoint_times import measure_endpoints, measure_endpoints_held_by_others
from hack.attacks.runner import AttackRunner
from hack.attacks.target import attacked_job

if TYPE_CHECKING:
    from hack.attacks.attack import Attack
    from hack.attacks.outcome import AttackOutcome
    from hack.attacks.target import AttackedJob

QUIET_SECONDS = 20.0  # in which the job's rate and memory are measured
LEARN_SECONDS, LEARNED = 120.0, 0.9  # until the mean reward of each rollout is so high


async def attack_all(
    attacks: list[Attack], *, seed: int, folder: Path
) -> tuple[list[AttackOutcome], float]:
    """Start a job, and do the attacks one after the other; also the rollouts' lowest reward."""
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
            verdict = "; ".join(outcome.failures()) or "refused"
            seconds, share = time.monotonic() - began, outcome.peak_share
            say(
                f"{number:3}/{len(attacks)} {attack.name}: {verdict} ({seconds:.1f} s, {share:.2f})"
            )
            if outcome.worker_exits:
                say("the other attacks are left out, as a worker has ended")
                return outcomes, -math.inf
        say("comparing how long callers wait with and without connections that others hold")
        alone, held = await measure_endpoints(job), await measure_endpoints_held_by_others(job)
        reward = await lowest_reward(job)
        figures = {"alone": asdict(alone), "held_by_others": asdict(held), "reward": reward}
        say(json.dumps({"attacks": len(outcomes), "steps_a_second": runner.rate, **figures}))
    return outcomes, reward


async def lowest_reward(job: AttackedJob) -> float:
    """The lowest mean reward that a rollout measures of its own samples, once it has learned."""
    deadline, lowest = time.monotonic() + LEARN_SECONDS, -math.inf
    while lowest < LEARNED and time.monotonic() < deadline:
        await asyncio.sleep(1.0)
        found = [await job.metrics(pod) for pod in job.job.rollouts]
        lowest = min(values["rollout_reward"] for values in found)
    return lowest


def say(line: str) -> None:
    """A line of progress."""
    print(line, flush=True)


def main() -> int:
    """Do the chosen attacks and print outcomes. 1 if one was not refused or nothing was learned."""
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
    # It warns of each write to a connection that is closed, and attackers write on.
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    folder = Path(tempfile.mkdtemp(prefix="rollcall-attacks-"))
    outcomes, reward = asyncio.run(attack_all(chosen, seed=arguments.seed, folder=folder))
    failed = [outcome for outcome in outcomes if outcome.failures()]
    say(f"{len(outcomes) - len(failed)} of {len(outcomes)} attacks as promised")
    learned = reward >= LEARNED
    if not learned:
        say(f"a rollout's own samples have a mean reward of {reward:.2f}, not {LEARNED:g}")
    say(json.dumps({outcome.attack.name: outcome.row() for outcome in outcomes}))
    return 0 if outcomes and learned and not failed else 1


if __name__ == "__main__":
    sys.exit(main())
